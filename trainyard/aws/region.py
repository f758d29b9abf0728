"""The AWS region that the environment or the AWS profile configures."""

import os


def environment_region() -> str | None:
    """Return the AWS region of the environment variables; None without one. AWS_REGION precedes AWS_DEFAULT_REGION."""
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")


def configured_region() -> str | None:
    """Return the AWS region of the environment or the AWS profile; None where no region is configured.

    botocore reads AWS_DEFAULT_REGION only; Pulumi and the other AWS SDKs use AWS_REGION.
    """
    import boto3  # here, because programs that use local folders only do not need it

    return environment_region() or boto3.Session().region_name
