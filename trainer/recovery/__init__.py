"""Recovery in process: ranks that survive a failure form a new process group with a replacement of the lost rank."""
