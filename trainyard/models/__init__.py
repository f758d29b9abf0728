"""Data that crosses a process boundary, as pydantic models: manifest, run, events, metrics, S3 layout."""
