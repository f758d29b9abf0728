"""The operator's command: launch, stop, status, logs, results."""
