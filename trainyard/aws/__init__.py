"""AWS access: boto3 clients, S3, Auto Scaling, EC2, the lease on worker groups, tag names, ECR image references."""
