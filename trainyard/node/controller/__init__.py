"""The controller on the head node: starts attempts, replaces nodes and renews the lease."""
