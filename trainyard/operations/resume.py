"""The checkpoint from which a new run continues another: it must exist and be readable before nodes are billed."""

from trainyard.aws.s3 import Bucket, StoredObject
from trainyard.models.layout import RunLayout, complete_checkpoints
from trainyard.operations.errors import LaunchError
from trainyard.operations.restore import archived_problem


def require_readable_checkpoint(data: Bucket, run: str) -> None:
    """Raise LaunchError when the run has no checkpoint, or when its newest checkpoint is archived and not restored."""
    objects = list(data.objects(RunLayout(run).checkpoints))
    newest = _newest_checkpoint(objects, RunLayout(run).checkpoints)
    if newest is None:
        raise LaunchError(
            f"job.resume = {run!r}: that run has no checkpoint in s3://{data.name}. Name another run, or remove "
            "job.resume"
        )
    members = (stored for stored in objects if stored.key.startswith(newest))
    if problem := archived_problem(data, members, newest, next_command="launch"):
        reason, fix = problem
        raise LaunchError(f"job.resume = {run!r}: its newest checkpoint s3://{data.name}/{newest} {reason}. {fix}")


def find_newest_checkpoint(data: Bucket, run: str) -> str | None:
    """Return the S3 URI of the run's newest checkpoint, as require_readable_checkpoint selects it; None without one."""
    prefix = RunLayout(run).checkpoints
    newest = _newest_checkpoint(list(data.objects(prefix)), prefix)
    return None if newest is None else f"s3://{data.name}/{newest}"


def _newest_checkpoint(objects: list[StoredObject], prefix: str) -> str | None:
    """Return the prefix of the newest complete checkpoint; of a job with its own format, that of the newest object."""
    if not objects:
        return None
    if names := complete_checkpoints((stored.key for stored in objects), prefix):
        return f"{prefix}{names[-1]}/"
    newest_name = max(objects, key=lambda stored: stored.modified).key.removeprefix(prefix)
    folder, slash, _ = newest_name.partition("/")
    return f"{prefix}{folder}{slash}"
