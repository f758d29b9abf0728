"""Look-ups of existing AWS resources by Pulumi invokes."""
