"""The controller on the head node: it starts attempts, replaces nodes and renews the lease."""
