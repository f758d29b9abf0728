"""Python environments of a node: for the playbook and services, for the built-in trainer, and for a custom job."""
