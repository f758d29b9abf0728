"""Check that the checkpoint that `job.resume` names can be read, before nodes are paid for."""

from trainyard.aws.s3 import Bucket, StoredObject
from trainyard.models.layout import RunLayout, complete_checkpoints
from trainyard.operations.errors import LaunchError
from trainyard.operations.restore import archived_problem


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
    members = (stored for stored in objects if stored.key.startswith(newest))
    if problem := archived_problem(data, members, newest, next_command="launch"):
        reason, fix = problem
        raise LaunchError(f"job.resume = {run!r}: its newest checkpoint s3://{data.name}/{newest} {reason}. {fix}")


def _newest_checkpoint(objects: list[StoredObject], prefix: str) -> str:
    """Return the prefix of the newest complete checkpoint; of a job with its own format, that of the newest object."""
    if names := complete_checkpoints((stored.key for stored in objects), prefix):
        return f"{prefix}{names[-1]}/"
    newest_name = max(objects, key=lambda stored: stored.modified).key.removeprefix(prefix)
    folder, slash, _ = newest_name.partition("/")
    return f"{prefix}{folder}{slash}"
