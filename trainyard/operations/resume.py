"""The checkpoint that `job.resume` asks for can be read before nodes are paid for."""

from trainyard.aws.s3 import Bucket, Stored
from trainyard.models.layout import RunLayout, complete_checkpoints
from trainyard.operations.errors import LaunchError

# Classes whose objects GetObject refuses (InvalidObjectState) until a restore has made a copy. Source:
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/archived-objects.html
_ARCHIVES = frozenset(["GLACIER", "DEEP_ARCHIVE"])
_RESTORED = 'ongoing-request="false"'
_DAYS = 7  # that a restored copy stays: a weekend, and the launch


def require_checkpoint(data: Bucket, run: str) -> None:
    """Raises LaunchError where the run left no checkpoint, or where its newest one is archived."""
    prefix = RunLayout(run).checkpoints
    stored = list(data.objects(prefix))
    if not stored:
        raise LaunchError(f"job.resume = {run!r}: that run left no checkpoint in s3://{data.name}")
    newest = _newest(stored, prefix)
    # A rule moves large objects only, so any of them may be the one; some of them may be back before others.
    for one in stored:
        if one.key.startswith(newest) and one.storage_class in _ARCHIVES:
            restore = data.restore_of(one.key)
            if _RESTORED not in restore:
                raise LaunchError(_refusal(data.name, run, newest, one, asked=bool(restore)))


def _newest(stored: list[Stored], prefix: str) -> str:
    """Prefix of the newest complete checkpoint; of a job with marks of its own, of what was written last."""
    if names := complete_checkpoints((one.key for one in stored), prefix):
        return f"{prefix}{names[-1]}/"
    last = max(stored, key=lambda one: one.modified).key.removeprefix(prefix)
    folder, slash, _ = last.partition("/")
    return f"{prefix}{folder}{slash}"


def _refusal(bucket: str, run: str, newest: str, one: Stored, *, asked: bool) -> str:
    where = f"job.resume = {run!r}: its newest checkpoint s3://{bucket}/{newest} is in {one.storage_class}"
    if asked:
        return (
            f"{where} and on its way back; launch again when `aws s3api head-object --bucket {bucket} --key {one.key}` "
            f"says {_RESTORED}"
        )
    return (
        f"{where}, from where no job can read it. Ask for it back, which takes 12 hours (Tier=Standard) or 48 "
        f"(Tier=Bulk), and launch again within the {_DAYS} days that it then stays: aws s3api list-objects-v2 --bucket "
        f"{bucket} --prefix {newest} --query 'Contents[].[Key]' --output text | xargs -I KEY aws s3api restore-object "
        f"--bucket {bucket} --key KEY --restore-request 'Days={_DAYS},GlacierJobParameters={{Tier=Standard}}'"
    )
