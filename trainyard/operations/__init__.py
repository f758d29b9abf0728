"""The operator's operations: launch, runs, status, results, bake."""
