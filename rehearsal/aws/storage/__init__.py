"""S3, KMS and FSx for Lustre."""
