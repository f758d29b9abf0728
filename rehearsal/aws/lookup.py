"""Things of the account by name; of groups and their members, AWS's refusal where there is none."""

from typing import Any

from moto.autoscaling.exceptions import ValidationError
from moto.s3.models import s3_backends


def group_of(backend: Any, name: str) -> Any:
    """The group of this name. Raises ValidationError as AWS does when there is none."""
    if name not in backend.autoscaling_groups:
        raise ValidationError(f"AutoScalingGroup name not found - AutoScalingGroup '{name}' not found")
    return backend.autoscaling_groups[name]


def member_of(backend: Any, instance_id: str | None) -> Any:
    """The member with this instance. Raises ValidationError as AWS does when there is none."""
    for group in backend.autoscaling_groups.values():
        for member in group.instance_states:
            if member.instance.id == instance_id:
                return member
    raise ValidationError(f"Instance Id not found - No managed instance found for instance ID: {instance_id}")


def bucket_of(name: str) -> Any:
    """The bucket of this name, whoever owns it; None where there is none."""
    partition, account = s3_backends.bucket_accounts.get(name, ("aws", ""))
    return s3_backends[account][partition].buckets.get(name) if account else None
