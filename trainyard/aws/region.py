"""The AWS region that the environment or the AWS profile configures, and whether AWS has it."""

import os
from functools import cache

from trainyard.errors import InputError, Problem, did_you_mean


def environment_region() -> str | None:
    """Return the AWS region of the environment variables; None without one. AWS_REGION precedes AWS_DEFAULT_REGION."""
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")


def configured_region() -> str | None:
    """Return the AWS region of the environment or the AWS profile; None where no region is configured.

    botocore reads AWS_DEFAULT_REGION only; Pulumi and the other AWS SDKs use AWS_REGION.
    """
    import boto3  # here, because programs that use local folders only do not need it

    return environment_region() or boto3.Session().region_name


def require_known_region(region: str, key: str, source: str) -> None:
    """Check that AWS has this region, as far as botocore knows. Raises InputError, which names `key` and its `source`.

    Otherwise the first call would fail with a host name that does not exist. No AWS profile is read.
    """
    if region not in (known := _known_regions()):
        fix = f"{did_you_mean(region, known)}Change it in {source}"
        raise InputError([Problem(key, region, "unknown AWS region", fix, "unknown_region")])


@cache
def _known_regions() -> frozenset[str]:
    from botocore.loaders import Loader
    from botocore.regions import EndpointResolver

    resolver = EndpointResolver(Loader().load_data("endpoints"))
    partitions = resolver.get_available_partitions()
    return frozenset(name for part in partitions for name in resolver.get_available_endpoints("ec2", part))
