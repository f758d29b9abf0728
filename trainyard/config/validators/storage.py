"""Rules about storage and tags."""

from collections.abc import Iterator
from pathlib import Path

from trainyard.aws.tags import OWN_PREFIX
from trainyard.base import CONFIG_KEY, Problem
from trainyard.config.settings import StackSettings
from trainyard.config.validators.rule import Rule

_MOST_TAGS = 50  # of most resources; ours take four


def backups_or_link(settings: StackSettings, root: Path) -> Iterator[Problem]:
    fsx = settings.fsx
    if fsx is None or not fsx.backup_days:
        return
    why = None
    if fsx.data_repository:
        why = "a file system that is linked to S3 can have no backups: the versioned bucket is its backup"
    elif fsx.deployment == "SCRATCH_2":
        why = "a SCRATCH_2 file system can have no backups"
    if why:
        yield Problem(
            key=f"{CONFIG_KEY}.fsx.backup_days", value=fsx.backup_days, why=why, fix="Set it to 0, or leave it out"
        )


def throughput_is_of_persistent(settings: StackSettings, root: Path) -> Iterator[Problem]:
    fsx = settings.fsx
    if fsx and fsx.deployment == "SCRATCH_2" and fsx.throughput_mbps_per_tib is not None:
        yield Problem(
            key=f"{CONFIG_KEY}.fsx.throughput_mbps_per_tib",
            value=fsx.throughput_mbps_per_tib,
            why="SCRATCH_2 has 200 MB/s per TiB, always",
            fix="Leave it out, or choose deployment PERSISTENT_2",
        )


def existing_bucket_is_its_owners(settings: StackSettings, root: Path) -> Iterator[Problem]:
    storage = settings.storage
    for key in ("noncurrent_days", "archive_days"):
        if storage.bucket and key in storage.model_fields_set:
            yield Problem(
                key=f"{CONFIG_KEY}.storage.{key}",
                value=getattr(storage, key),
                why=f"stands beside storage.bucket, and the lifecycle of {storage.bucket} is its owner's",
                fix="Remove it, and set the rule on the bucket itself",
            )


def tags_are_few(settings: StackSettings, root: Path) -> Iterator[Problem]:
    room = _MOST_TAGS - 4
    if len(settings.tags) > room:
        yield Problem(
            key=f"{CONFIG_KEY}.tags",
            value=f"{len(settings.tags)} tags",
            why=f"AWS lets a resource bear {_MOST_TAGS} tags, and some of them are Trainyard's own",
            fix=f"Keep {room} at most",
        )


def tags_leave_ours_alone(settings: StackSettings, root: Path) -> Iterator[Problem]:
    for key, value in sorted(settings.tags.items()):
        if key.lower().startswith(OWN_PREFIX) or key.lower() == "name":
            yield Problem(
                key=f"{CONFIG_KEY}.tags.{key}",
                value=value,
                why="Trainyard sets that tag itself, and finds by such what is its own",
                fix="Remove it, or choose another key",
            )


def tags_differ(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """IAM user guide, "Tags for IAM resources", case sensitivity: on a role, keys that differ in case alone are one."""
    before: dict[str, str] = {}
    for key, value in sorted(settings.tags.items()):
        first = before.setdefault(key.lower(), key)
        if first != key:
            yield Problem(
                key=f"{CONFIG_KEY}.tags.{key}",
                value=value,
                why=f"differs from {first} in case alone, and IAM takes the two for one key",
                fix="Keep one of the two",
            )


RULES = (
    Rule(backups_or_link, ("fsx",)),
    Rule(throughput_is_of_persistent, ("fsx",)),
    Rule(existing_bucket_is_its_owners, ("storage.bucket", "storage.noncurrent_days", "storage.archive_days")),
    Rule(tags_are_few, ("tags",)),
    Rule(tags_leave_ours_alone, ("tags",)),
    Rule(tags_differ, ("tags",)),
)
