"""AWS calls and names: S3, the lease, tags, ECR."""
