"""boto3 clients, one per service and region, with retries that outlive a short outage."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import boto3
from botocore.config import Config

from trainyard.aws.certificates import trusted_certificates


@dataclass
class Limits:
    """Limits of a request: number of attempts, and seconds for each response."""

    max_attempts: int = 9
    read_timeout_seconds: float = 60.0


# Those of this process. A program that repeats its requests itself sets others before it creates a client.
LIMITS = Limits()


@cache
def client(service: str, region: str, max_attempts: int | None = None) -> Any:
    """Return the boto3 client of a service, created once: creation is slow, and clients are thread-safe.

    `max_attempts`: 1 disables retries, which include HTTP status 500 of a capacity shortage; None: LIMITS.
    """
    retries: Any = {"mode": "standard", "total_max_attempts": max_attempts or LIMITS.max_attempts}
    config = Config(retries=retries, connect_timeout=5, read_timeout=LIMITS.read_timeout_seconds)
    return boto3.client(service, region_name=region, config=config, verify=trusted_certificates())
