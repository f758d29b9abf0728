"""Find the resources that `destroy` retained, by their tags."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pulumi_aws as aws

from infra.lookups.errors import is_missing
from trainyard.aws import tags
from trainyard.errors import InputError, Problem


@dataclass(frozen=True, kw_only=True)
class TaggedResource:
    """A resource that the tagging API lists. `id`: its name or id."""

    id: str
    tags: Mapping[str, str]


def find_retained(
    stack_tag: str, resource_type: str, role: str, is_usable: Callable[[str], bool] = lambda name: True
) -> TaggedResource | None:
    """Return the stack's resource of a type (tagging API, e.g. s3:bucket) and role, or None.

    `is_usable` filters tagged resources. Raises InputError if several are usable.
    """
    tagged = aws.resourcegroupstaggingapi.get_resources(
        resource_type_filters=[resource_type],
        tag_filters=[
            {"key": tags.STACK, "values": [stack_tag]},
            {"key": tags.ROLE, "values": [role]},
        ],
    )
    tags_by_id = {
        entry.resource_arn.rpartition(":")[2].rpartition("/")[2]: entry.tags
        for entry in tagged.resource_tag_mapping_lists
    }
    ids = [name for name in sorted(tags_by_id) if is_usable(name)]
    if len(ids) > 1:
        raise InputError(
            [
                Problem(
                    f"{tags.STACK}={stack_tag}, {tags.ROLE}={role}",
                    ids,
                    f"more than one {resource_type} has these tags of the stack",
                    "Remove the tags from all except one",
                    "retained_resource_ambiguous",
                )
            ]
        )
    return TaggedResource(id=ids[0], tags=tags_by_id[ids[0]]) if ids else None


@dataclass(frozen=True, kw_only=True)
class RetainedResources:
    """Resources of an earlier `up`. `key` and `bucket` are ids to import; None if they do not exist.

    `bucket_key`: the tag KMS_KEY of the bucket. `staging_bucket`: the name of the cluster's staging bucket; None if the
    cluster does not exist.
    """

    key: str | None
    bucket: str | None
    bucket_key: str | None
    staging_bucket: str | None


def look_up_retained(stack_tag: str) -> RetainedResources:
    """Look up the retained resources of a stack. Raises InputError if several resources have its tags."""
    key = find_retained(stack_tag, "kms:key", tags.STACK_KEY, _is_enabled)
    bucket = find_retained(stack_tag, "s3:bucket", tags.DATA_BUCKET, _bucket_exists)
    staging_bucket = find_retained(stack_tag, "s3:bucket", tags.STAGING_BUCKET, _bucket_exists)
    return RetainedResources(
        key=key.id if key else None,
        bucket=bucket.id if bucket else None,
        bucket_key=bucket.tags.get(tags.KMS_KEY) if bucket else None,
        staging_bucket=staging_bucket.id if staging_bucket else None,
    )


def _is_enabled(key: str) -> bool:
    """A key that is pending deletion keeps its tags."""
    return aws.kms.get_key(key_id=key).key_state == "Enabled"


def _bucket_exists(bucket: str) -> bool:
    """The tagging API lists a deleted bucket for a while."""
    try:
        aws.s3.get_bucket(bucket=bucket)
    except Exception as error:
        if is_missing(error):
            return False
        raise
    return True
