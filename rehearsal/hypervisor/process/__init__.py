"""The process backend: a node is a folder, a process tree and a loopback address."""
