"""Retention of checkpoints: which are kept, and deletion of the others."""

from itertools import groupby

from trainer.storage import Storage
from trainyard.config.training.config import CheckpointConfig
from trainyard.models.layout import COMMIT_MARK

_PREFIX = "step-"


def folder_name(step: int) -> str:
    """Return the name of a checkpoint's folder. Names sort in the order of steps."""
    return f"{_PREFIX}{step:08d}"


def list_steps(storage: Storage) -> list[int]:
    """Return the steps of all checkpoint folders, complete or not, in ascending order."""
    return sorted(int(name.removeprefix(_PREFIX)) for name in storage.folders() if _is_checkpoint(name))


def is_complete(storage: Storage, step: int) -> bool:
    """Return whether the checkpoint of a step has its commit mark."""
    return storage.exists(f"{folder_name(step)}/{COMMIT_MARK}")


def steps_to_delete(complete: list[int], saved: int, config: CheckpointConfig) -> list[int]:
    """Return the steps of the complete checkpoints to delete, once the checkpoint of step `saved` is complete.

    Checkpoints of later steps do not count and are not deleted: the run has skipped them as damaged and will overwrite
    them.
    """
    if config.keep_last is None:
        return []
    steps = sorted(step for step in complete if step <= saved)
    kept = set(steps[-config.keep_last :])
    if interval := config.keep_every_steps:  # a checkpoint may be saved at any step
        kept |= {min(group) for number, group in groupby(steps, lambda step: step // interval) if number}
    return [step for step in steps if step not in kept]


def apply_retention(storage: Storage, saved: int, config: CheckpointConfig) -> list[int]:
    """Delete the checkpoints that are not kept, and incomplete ones before step `saved`. Returns the deleted steps.

    Interrupted saves and interrupted deletions leave incomplete checkpoints.
    """
    if config.keep_last is None:
        return []
    earlier = [step for step in list_steps(storage) if step < saved]
    complete = [step for step in earlier if is_complete(storage, step)]
    deleted = sorted({*steps_to_delete([*complete, saved], saved, config), *(set(earlier) - set(complete))})
    for step in deleted:
        delete_checkpoint(storage, step)
    return deleted


def delete_checkpoint(storage: Storage, step: int) -> None:
    """Delete the commit mark, then the files, so that an interrupted deletion leaves an incomplete checkpoint."""
    storage.delete(f"{folder_name(step)}/{COMMIT_MARK}")
    storage.delete_folder(folder_name(step))


def _is_checkpoint(name: str) -> bool:
    return name.startswith(_PREFIX) and name.removeprefix(_PREFIX).isdecimal()
