"""A simulated account with nodes and a job, which the unmodified controller of a run controls."""
