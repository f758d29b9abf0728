"""Pydantic models of the data that processes exchange: manifest, run, events, metrics, S3 keys."""
