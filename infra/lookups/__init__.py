"""Lookups of existing AWS resources by Pulumi invokes."""
