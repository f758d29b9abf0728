"""Pulumi components, one a module."""
