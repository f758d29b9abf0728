"""Tags that identify a stack's resources, with or without the Pulumi CLI, and that select old objects for archiving."""

from collections.abc import Iterable, Mapping
from typing import Any

TRAINYARD_PREFIX = "trainyard:"
STACK = "trainyard:stack"  # its value: stack_tag
ROLE = "trainyard:role"
STACK_KEY = "stack-key"
DATA_BUCKET = "data-bucket"
KMS_KEY = "trainyard:kms-key"  # on the data bucket: the setting storage.kms_key, STACK_KEY for the stack's own key
STAGING_BUCKET = "staging-bucket"
BUILDER = "builder"
IMAGE = "image"
HELD_CAPACITY = "held-capacity"  # the reservation of `trainyard reserve`, and its placement group
LAUNCH = "trainyard:launch"  # on a capacity reservation: the id of the launch that uses it

# On a builder instance: the id of its bake, and the Unix time at which it terminates. On an image: the SHA-256 of its
# content, and the image that it is based on.
BAKE = "trainyard:bake"
UNTIL = "trainyard:until"
CONTENT = "trainyard:content"
SOURCE = "trainyard:source"

# On old checkpoints and results. The data bucket's lifecycle rule moves objects with this tag to Deep Archive.
ARCHIVE = "trainyard:archive"
OLD = "old"
KEPT = "kept"  # was OLD, until a job resumed from the run


def stack_tag(project: str, stack: str) -> str:
    """Return the value of the tag STACK, which the stacks of this name in other Pulumi projects do not have."""
    return f"{project}/{stack}"


def held_capacity_tags(stack_tag: str) -> dict[str, str]:
    """Return the tags of the reservation of `trainyard reserve`, and of its placement group."""
    return {STACK: stack_tag, ROLE: HELD_CAPACITY}


def own_tags(project: str, stack: str, role: str) -> dict[str, str]:
    """Return the tags by which Trainyard finds a resource of a stack."""
    return {"Name": f"{project}-{stack}-{role}", STACK: stack_tag(project, stack), ROLE: role}


def tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Convert tags to the list form of the EC2 API."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def tag_filters(tags: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the filters of a Describe operation that select resources with all these tags."""
    return [{"Name": f"tag:{key}", "Values": [value]} for key, value in tags.items()]


def tag_specifications(tags: Mapping[str, str], resource_types: Iterable[str]) -> list[dict[str, Any]]:
    """Return the request parameter that tags new resources of these types."""
    return [{"ResourceType": kind, "Tags": tag_list(tags)} for kind in resource_types]
