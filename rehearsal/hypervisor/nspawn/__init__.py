"""The `nspawn` back-end: each node is a booted systemd-nspawn machine with a network namespace of its own."""
