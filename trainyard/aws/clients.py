"""boto3 clients, one per service and region, with retries that outlive a short outage."""

from functools import cache
from typing import Any

import boto3
from botocore.config import Config

_CONFIG = Config(retries={"mode": "standard", "max_attempts": 8}, connect_timeout=5, read_timeout=60)


@cache
def client(service: str, region: str) -> Any:
    """Return the boto3 client of a service, created once: creation is slow, and clients are thread-safe."""
    return boto3.client(service, region_name=region, config=_CONFIG)
