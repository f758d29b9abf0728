"""What an earlier `up` made and `destroy` kept, found again by its tags."""

from collections.abc import Callable
from dataclasses import dataclass

import pulumi_aws as aws

from contract import tags
from contract.base import InputError, Problem


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
class Retained:
    """Ids of what is adopted; none where there is nothing to adopt."""

    key: str | None
    bucket: str | None


def look_up_retained(stack: str) -> Retained:
    """Key and data bucket of an earlier `up` of the stack."""
    return Retained(
        key=retained(stack, "kms:key", tags.STACK_KEY, _enabled),
        bucket=retained(stack, "s3:bucket", tags.DATA_BUCKET),
    )


def _enabled(key: str) -> bool:
    """One that is on its way to deletion bears its tags to the end."""
    return aws.kms.get_key(key_id=key).key_state == "Enabled"
