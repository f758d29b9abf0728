"""Installed in the image of booted nodes: cloud-init loads it before its own EC2 datasource."""
