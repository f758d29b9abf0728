"""Detection and explanation of fatal failures: out of memory, a hang, a lost peer."""
