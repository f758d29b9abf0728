"""Recovery in process: the ranks that a failure leaves form a new process group with a replacement of the lost rank."""
