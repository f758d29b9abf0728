"""The AWS region that the environment or the AWS profile configures."""

import os


def configured_region() -> str | None:
    """Return the AWS region of the environment or the AWS profile; None where no region is configured.

    botocore reads AWS_DEFAULT_REGION only; Pulumi and the other AWS SDKs use AWS_REGION.
    """
    import boto3  # here, because programs that use local folders only do not need it

    return os.environ.get("AWS_REGION") or boto3.Session().region_name
