"""Lookup of backends of moto, and of Auto Scaling groups, their instances and S3 buckets in them."""

from typing import Any

from moto.autoscaling.exceptions import ValidationError
from moto.s3.models import s3_backends


def find_backend(backends: Any, account: str, region: str) -> Any:
    """Return a service's backend, or None if no call has used the service in the region: moto creates it otherwise."""
    return dict.get(dict.get(backends, account, {}), region)


def find_group(backend: Any, name: str) -> Any:
    """Return the Auto Scaling group of this name. Raises ValidationError, as AWS does, if it does not exist."""
    if name not in backend.autoscaling_groups:
        raise ValidationError(f"AutoScalingGroup name not found - AutoScalingGroup '{name}' not found")
    return backend.autoscaling_groups[name]


def find_member(backend: Any, instance_id: str | None) -> Any:
    """Return the group member of this instance. Raises ValidationError, as AWS does, if no group has it."""
    for group in backend.autoscaling_groups.values():
        for member in group.instance_states:
            if member.instance.id == instance_id:
                return member
    raise ValidationError(f"Instance Id not found - No managed instance found for instance ID: {instance_id}")


def find_bucket(name: str) -> Any:
    """Return the bucket of this name in any account, or None."""
    partition, account = s3_backends.bucket_accounts.get(name, ("aws", ""))
    return s3_backends[account][partition].buckets.get(name) if account else None
