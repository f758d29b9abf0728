"""Python environments of a node: its own, the job's and the job source's."""
