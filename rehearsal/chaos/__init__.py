"""Long rehearsals with random faults: schedule, checks and report."""
