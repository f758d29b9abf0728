"""Security audit: insecure calls in the code, and insecure settings of the resources of a stack."""
