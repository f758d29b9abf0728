"""Validation of a stack against the AWS account."""
