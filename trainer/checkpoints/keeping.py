"""Which checkpoints stay."""

from trainer.storage import Storage
from trainyard.config.training.config import CheckpointConfig
from trainyard.models.layout import COMMIT_MARK

_NAME = "step-"


def name_of(step: int) -> str:
    """A checkpoint's folder. Names sort as steps do."""
    return f"{_NAME}{step:08d}"


def steps(storage: Storage) -> list[int]:
    """Of all folders that are a checkpoint's, complete or not, in order."""
    return sorted(int(name.removeprefix(_NAME)) for name in storage.folders() if _is_ours(name))


def is_complete(storage: Storage, step: int) -> bool:
    return storage.exists(f"{name_of(step)}/{COMMIT_MARK}")


def surplus(complete: list[int], saved: int, config: CheckpointConfig) -> list[int]:
    """Steps of the complete checkpoints that go, once that of step `saved` is complete.

    Later ones than it neither count nor go: the run has skipped them as damaged and will write over them.
    """
    if config.keep is None:
        return []
    past = sorted(step for step in complete if step <= saved)
    often = config.keep_every
    return [step for step in past[: -config.keep] if not often or step % often]


def clear(storage: Storage, saved: int, config: CheckpointConfig) -> list[int]:
    """Delete what the rule does not keep, and before it what killed saves and deletions left. Returns the steps."""
    if config.keep is None:
        return []
    found = [step for step in steps(storage) if step < saved]
    complete = [step for step in found if is_complete(storage, step)]
    gone = sorted({*surplus([*complete, saved], saved, config), *(set(found) - set(complete))})
    for step in gone:
        delete(storage, step)
    return gone


def delete(storage: Storage, step: int) -> None:
    """The commit mark first: what is left of a killed deletion does not count."""
    storage.delete(f"{name_of(step)}/{COMMIT_MARK}")
    storage.delete_folder(name_of(step))


def _is_ours(name: str) -> bool:
    return name.startswith(_NAME) and name.removeprefix(_NAME).isdecimal()
