"""The nspawn backend: each node is a booted systemd-nspawn container with its own network namespace."""
