"""Faults of ranks, nodes and the head, which are injected while a job runs."""
