"""boto3 clients, one per service and region, with retries that outlive a short outage."""

from functools import cache
from typing import Any

import boto3
from botocore.config import Config

from trainyard.aws.certificates import trusted_certificates

MAX_ATTEMPTS = 9


@cache
def client(service: str, region: str, max_attempts: int = MAX_ATTEMPTS) -> Any:
    """Return the boto3 client of a service, created once: creation is slow, and clients are thread-safe.

    `max_attempts`: 1 disables retries, which include HTTP status 500 of a capacity shortage.
    """
    retries: Any = {"mode": "standard", "total_max_attempts": max_attempts}
    config = Config(retries=retries, connect_timeout=5, read_timeout=60)
    return boto3.client(service, region_name=region, config=config, verify=trusted_certificates())
