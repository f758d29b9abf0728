"""Installed in a node's root: what its cloud-init loads before its own EC2 datasource."""
