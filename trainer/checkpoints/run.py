"""The checkpoints of one run, as the training loop uses them."""

from types import TracebackType
from typing import Self

import torch.distributed as dist

from trainer.checkpoints import keeping
from trainer.checkpoints.reader import load_newest
from trainer.checkpoints.state import State
from trainer.checkpoints.writer import Writer
from trainer.storage import open_storage
from trainyard.base import InputError, Problem
from trainyard.config.training.config import CheckpointConfig
from trainyard.models.layout import COMMIT_MARK


class Checkpoints:
    """One folder a step under `uri`. All ranks call every method but `complete` at the same step of the loop.

        with Checkpoints(uri, group, config.checkpoint) as checkpoints:
            checkpoints.resume(state, resume_uri)
            for each step:
                ...  # forward, backward
                checkpoints.before_update()
                ...  # optimizer
                checkpoints.poll()
                if due: checkpoints.save(state)
            checkpoints.wait()

    `group` is a gloo group of all ranks that nothing else uses: a thread saves in it while training goes on.
    """

    def __init__(
        self, uri: str, group: dist.ProcessGroup, config: CheckpointConfig, name: str = "CHECKPOINT_URI"
    ) -> None:
        self._storage = open_storage(uri, name)
        self._group = group
        self._config = config
        self._writer = Writer(group, asynchronous=config.asynchronous)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def resume(self, state: State, resume_uri: str | None = None) -> str | None:
        """Fill `state` from the run's own newest checkpoint, or else from that of the run whose checkpoints are at
        `resume_uri`. Returns the URI of what was loaded, None at a beginning.

        Another run may have had another seed or dataset: its weights, optimizer and step are taken over, and samples
        are counted from 0 then. Raises InputError where `resume_uri` has no complete checkpoint, where all are damaged,
        and where the newest one was made with another model, the run's own with another order of samples, or has been
        archived; OSError where the storage can't be read.
        """
        uri = load_newest(self._storage, state, self._group)
        if uri is None and resume_uri:
            uri = load_newest(open_storage(resume_uri, "RESUME_URI"), state, self._group, own=False)
            if uri is None:
                why, fix = (
                    "holds no complete checkpoint",
                    "Name the checkpoints of a run that saved one, or leave it out",
                )
                raise InputError([Problem(key="RESUME_URI", value=resume_uri, why=why, fix=fix)])
        return uri

    def save(self, state: State) -> str:
        """Begin to save the state as it is now. Returns the URI that it will have; `poll` tells when it is there.

        Waits for the save before it, and raises OSError where that one failed. The state may change once
        `before_update` has returned.
        """
        step = state.progress.step
        uri = f"{self._storage.uri}{keeping.name_of(step)}/"
        first = dist.get_rank(self._group) == 0

        def begin() -> None:
            # One that is written over was damaged, or the run would be past it. It must not count while half is new.
            if first:
                self._storage.delete(f"{keeping.name_of(step)}/{COMMIT_MARK}")

        def finish() -> None:
            if first:
                self._clear(step)

        self._writer.save(state, uri, begin, finish)
        return uri

    def before_update(self) -> None:
        """Call before anything of the state changes: waits until the copy that is saved is complete."""
        self._writer.before_update()

    def poll(self) -> list[str]:
        """URIs of the saves that are through, each told once. Raises OSError at once where one has failed."""
        return self._writer.poll()

    def wait(self) -> list[str]:
        """As `poll`, when nothing is being written any more."""
        return self._writer.wait()

    def stalled(self) -> float:
        """Seconds that training has lost to checkpoints since this was last asked."""
        return self._writer.stalled()

    def close(self) -> None:
        """Wait for what is being written, whatever becomes of it."""
        self._writer.close()

    def complete(self) -> list[str]:
        """URIs of the complete ones, oldest first. For any one rank."""
        found = [step for step in keeping.steps(self._storage) if keeping.is_complete(self._storage, step)]
        return [f"{self._storage.uri}{keeping.name_of(step)}/" for step in found]

    def own(self, uri: str) -> bool:
        """Whether a checkpoint is one of this run's."""
        return uri.rstrip("/").rpartition("/")[0] + "/" == self._storage.uri

    def _clear(self, saved: int) -> None:
        try:
            keeping.clear(self._storage, saved, self._config)
        except OSError as error:
            print(f"warning: old checkpoints not deleted, again after the next save: {error}", flush=True)
