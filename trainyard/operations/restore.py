"""Objects in an archive class of S3: whether they can be read, and the commands that restore them."""

from collections.abc import Iterable

from trainyard.aws.s3 import Bucket, StoredObject

_RESTORED = 'ongoing-request="false"'
_RESTORE_DAYS = 7  # lifetime of a restored copy: a weekend, and the launch


def archived_problem(
    data: Bucket, objects: Iterable[StoredObject], prefix: str, *, next_command: str
) -> tuple[str, str] | None:
    """Return reason and fix if an object is archived and not restored; None if all can be read.

    Some objects are restored before others. `prefix`: that of the objects to restore. `next_command`: what the user
    does again after the restore, such as "launch".
    """
    for stored in objects:
        if stored.archived and _RESTORED not in (status := data.restore_status(stored.key)):
            is_requested = bool(status)
            describe = _describe_restoring if is_requested else _describe_archived
            return describe(data.name, prefix, stored, next_command)
    return None


def _describe_restoring(bucket: str, prefix: str, stored: StoredObject, next_command: str) -> tuple[str, str]:
    command = f"aws s3api head-object --bucket {bucket} --key {stored.key}"
    reason = f"is in {stored.storage_class} and its restore is in progress"
    return reason, f"{next_command.capitalize()} again when `{command}` returns {_RESTORED}"


def _describe_archived(bucket: str, prefix: str, stored: StoredObject, next_command: str) -> tuple[str, str]:
    fix = (
        f"Restore it, which takes 12 hours (Tier=Standard) or 48 hours (Tier=Bulk), and {next_command} again within "
        f"the {_RESTORE_DAYS} days that the restored copy exists: aws s3api "
        f"list-objects-v2 --bucket {bucket} --prefix {prefix} --query 'Contents[].[Key]' --output text | xargs -I KEY "
        f"aws s3api restore-object --bucket {bucket} --key KEY --restore-request "
        f"'Days={_RESTORE_DAYS},GlacierJobParameters={{Tier=Standard}}'"
    )
    return f"is in {stored.storage_class}, so that jobs cannot read it", fix
