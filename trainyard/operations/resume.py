"""Check that the checkpoint that `job.resume` names can be read, before nodes are paid for."""

from trainyard.aws.s3 import Bucket, StoredObject
from trainyard.models.layout import RunLayout, complete_checkpoints
from trainyard.operations.errors import LaunchError

# Storage classes whose objects GetObject refuses (InvalidObjectState) until they are restored. Source:
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/archived-objects.html
_ARCHIVE_CLASSES = frozenset(["GLACIER", "DEEP_ARCHIVE"])
_RESTORED = 'ongoing-request="false"'
_RESTORE_DAYS = 7  # lifetime of a restored copy: a weekend, and the launch


def require_readable_checkpoint(data: Bucket, run: str) -> None:
    """Raise LaunchError when the run has no checkpoint, or when its newest checkpoint is archived and not restored."""
    prefix = RunLayout(run).checkpoints
    objects = list(data.objects(prefix))
    if not objects:
        raise LaunchError(
            f"job.resume = {run!r}: that run has no checkpoint in s3://{data.name}. Name another run, or remove "
            "job.resume"
        )
    newest = _newest_checkpoint(objects, prefix)
    # The lifecycle rule archives large objects only, so any object may be archived; some are restored before others.
    for stored in objects:
        if stored.key.startswith(newest) and stored.storage_class in _ARCHIVE_CLASSES:
            restore = data.restore_status(stored.key)
            if _RESTORED not in restore:
                raise LaunchError(_archived_message(data.name, run, newest, stored, restore_requested=bool(restore)))


def _newest_checkpoint(objects: list[StoredObject], prefix: str) -> str:
    """Return the prefix of the newest complete checkpoint; of a job with its own format, that of the newest object."""
    if names := complete_checkpoints((stored.key for stored in objects), prefix):
        return f"{prefix}{names[-1]}/"
    newest_name = max(objects, key=lambda stored: stored.modified).key.removeprefix(prefix)
    folder, slash, _ = newest_name.partition("/")
    return f"{prefix}{folder}{slash}"


def _archived_message(bucket: str, run: str, newest: str, stored: StoredObject, *, restore_requested: bool) -> str:
    checkpoint = f"job.resume = {run!r}: its newest checkpoint s3://{bucket}/{newest} is in {stored.storage_class}"
    if restore_requested:
        return (
            f"{checkpoint} and its restore is in progress; launch again when `aws s3api head-object --bucket {bucket} "
            f"--key {stored.key}` returns {_RESTORED}"
        )
    return (
        f"{checkpoint}, so that jobs cannot read it. Restore it, which takes 12 hours (Tier=Standard) or 48 hours "
        f"(Tier=Bulk), and launch again within the {_RESTORE_DAYS} days that the restored copy exists: aws s3api "
        f"list-objects-v2 --bucket {bucket} --prefix {newest} --query 'Contents[].[Key]' --output text | xargs -I KEY "
        f"aws s3api restore-object --bucket {bucket} --key KEY --restore-request "
        f"'Days={_RESTORE_DAYS},GlacierJobParameters={{Tier=Standard}}'"
    )
