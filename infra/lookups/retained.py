"""What an earlier `up` made and `destroy` kept, found again by its tags."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import pulumi_aws as aws

from trainyard.aws import tags
from trainyard.base import InputError, Problem


def retained(stack: str, kind: str, role: str, usable: Callable[[str], bool] = lambda name: True) -> str | None:
    """Name or id of the stack's thing of a kind (as the tagging API spells it, e.g. s3:bucket) and role, if any.

    `usable`: whether one that bears the tags still counts. Raises InputError when several do.
    """
    found = aws.resourcegroupstaggingapi.get_resources(
        resource_type_filters=[kind],
        tag_filters=[
            {"key": tags.STACK, "values": [stack]},
            {"key": tags.ROLE, "values": [role]},
        ],
    )
    borne = {entry.resource_arn.rpartition(":")[2].rpartition("/")[2] for entry in found.resource_tag_mapping_lists}
    ids = [name for name in sorted(borne) if usable(name)]
    if len(ids) > 1:
        raise InputError(
            [
                Problem(
                    key=f"{tags.STACK}={stack}, {tags.ROLE}={role}",
                    value=ids,
                    why=f"more than one {kind} bears these tags of this stack's own",
                    fix="Remove the tags from all but one of them",
                )
            ]
        )
    return ids[0] if ids else None


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """What an earlier `up` of the stack has left. `key`, `bucket`: ids of what is adopted; none where there is nothing.

    `stands`: whether its cluster is there: the staging bucket goes with it.
    """

    key: str | None
    bucket: str | None
    stands: bool


def look_up_earlier(stack: str) -> Earlier:
    """Raises InputError where it is not clear which one is the stack's."""
    return Earlier(
        key=retained(stack, "kms:key", tags.STACK_KEY, _enabled),
        bucket=retained(stack, "s3:bucket", tags.DATA_BUCKET, _there),
        stands=retained(stack, "s3:bucket", tags.STAGING_BUCKET, _there) is not None,
    )


def _enabled(key: str) -> bool:
    """One that is on its way to deletion bears its tags to the end."""
    return aws.kms.get_key(key_id=key).key_state == "Enabled"


def _there(bucket: str) -> bool:
    """AWS's index of tags goes on naming a bucket for a while after somebody has deleted it."""
    try:
        aws.s3.get_bucket(bucket=bucket)
    except Exception as error:
        if re.search("not ?found|empty result|couldn't find|NoSuchBucket|404", str(error), re.IGNORECASE):
            return False
        raise
    return True
