"""The `process` back-end: a node is a folder, a tree of processes and its own loopback address."""
