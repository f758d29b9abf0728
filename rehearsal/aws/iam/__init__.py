"""IAM: identification of the caller and authorization by policies."""
