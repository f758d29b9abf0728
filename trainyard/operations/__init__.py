"""The operator's operations on a stack: launch, stop, status, logs, results, bake."""
