"""Saves and resumes the checkpoints of one run. The training loop uses this interface."""

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Self

import torch.distributed as dist

from trainer.checkpoints.cadence import Cadence, SaveTimes
from trainer.checkpoints.failures import RefusedError
from trainer.checkpoints.memory import MemoryCopies
from trainer.checkpoints.reader import load_newest, newest_step
from trainer.checkpoints.retention import apply_retention, folder_name, is_complete, list_steps
from trainer.checkpoints.state import State
from trainer.checkpoints.writer import Writer
from trainer.storage import open_storage
from trainyard.config.training.config import CheckpointConfig
from trainyard.errors import InputError, Problem
from trainyard.models.layout import COMMIT_MARK

# Of the last save of a process, two minutes each: a job that ends during an outage of ten minutes saves its state.
FINAL_ATTEMPTS = 6
_MEMORY = "memory:"  # instead of the URI of the run's checkpoints
log = logging.getLogger(__name__)


class Checkpoints:
    """The checkpoints under `uri`, one folder per step.

    All ranks call every method except `list_complete` and `contains` at the same step of the loop.

        with Checkpoints(uri, group, config.checkpoint) as checkpoints:
            checkpoints.resume(state, resume_uri)
            for each step:
                ...  # forward, backward
                checkpoints.wait_for_staging()
                ...  # optimizer
                checkpoints.poll()
                if checkpoints.is_due(step) on any rank, and no rank retries a save: checkpoints.save(state)
                if checkpoints.is_copy_due(step) on any rank, and no rank is copying: checkpoints.copy(state)
            checkpoints.finish(state)

    `group` is a gloo group of all ranks that nothing else uses: a thread saves with it during training.
    """

    def __init__(
        self,
        uri: str,
        group: dist.ProcessGroup,
        config: CheckpointConfig,
        nodes: int = 1,
        name: str = "CHECKPOINT_URI",
        memory: MemoryCopies | None = None,
    ) -> None:
        """`nodes`: number of nodes of the job. `name`: the variable that has set `uri`, for messages.

        `memory`: copies of the newest state in host memory.
        """
        self._memory = memory
        self._storage = open_storage(uri, name)
        self._group = group
        self._config = config
        self._cadence = Cadence(config, nodes)
        self._writer = Writer(group, asynchronous=config.asynchronous, record_times=self._record_times)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def resume(self, state: State, resume_uri: str | None = None) -> str | None:
        """Load the newest checkpoint of this run, or else of the run with checkpoints at `resume_uri`, into `state`.

        A copy in host memory that is at least as new is loaded instead. Memory for the next copies is
        allocated.
        Returns the URI of the checkpoint, None if the run starts at step 0. Another run may have another seed or
        dataset: its weights, optimizer state and step are loaded, and samples are then counted from 0. Raises
        InputError if `resume_uri` has no complete checkpoint, if all checkpoints are damaged, or if the newest one has
        another model, is of this run and has another order of samples, or is archived; OSError if the storage can't be
        read.
        """
        if self._memory is None:
            return self._load_newest(state, resume_uri)
        step = self._memory.load(state, newest_step(self._storage, self._group))
        uri = self._load_newest(state, resume_uri) if step is None else f"{_MEMORY}{folder_name(step)}"
        self.prepare_copies(state)
        return uri

    def prepare_copies(self, state: State) -> None:
        """Allocate host memory for copies. `resume` does it; call it if the state comes from elsewhere."""
        if self._memory is not None:
            self._memory.prepare(state)

    def _load_newest(self, state: State, resume_uri: str | None) -> str | None:
        uri = load_newest(self._storage, state, self._group)
        if uri is None and resume_uri:
            uri = load_newest(open_storage(resume_uri, "RESUME_URI"), state, self._group, same_run=False)
            if uri is None:
                reason = "holds no complete checkpoint"
                fix = "Set it to the checkpoints of a run that has saved one, or unset it"
                raise InputError([Problem("RESUME_URI", resume_uri, reason, fix, "checkpoint_missing")])
        return uri

    def is_due(self, step: int) -> bool:
        """Return whether this rank requires a save at the end of this step. Only the first rank ever does.

        It decides for all ranks, since their clocks and measured times differ.
        """
        return dist.get_rank(self._group) == 0 and self._cadence.is_due(step)

    def save(self, state: State) -> str:
        """Start an asynchronous save of the current state. Returns the URI of the checkpoint.

        `poll` returns the URI once the checkpoint is complete. Waits for the previous save. The state may change after
        the next `wait_for_staging`. A save that fails is counted in `failed_saves`. Raises RefusedError if the storage
        refuses the first save.
        """
        step = state.progress.step
        uri = f"{self._storage.uri}{folder_name(step)}/"
        is_first_rank = dist.get_rank(self._group) == 0

        def before_attempt() -> None:
            # An existing checkpoint of this step is damaged, or the run would be past it. Without its commit mark it is
            # incomplete while its files are overwritten.
            if is_first_rank:
                self._storage.delete(f"{folder_name(step)}/{COMMIT_MARK}")

        def after_commit() -> None:
            if is_first_rank:
                self._delete_old(step)

        self._cadence.record_start()
        self._writer.save(state, uri, before_attempt, after_commit)
        return uri

    def wait_for_staging(self) -> None:
        """Wait until the copy that is saved is complete. Call it before the optimizer changes the state."""
        self._writer.wait_for_staging()
        if self._memory is not None:
            self._memory.wait_for_staging()

    def is_copy_due(self, step: int) -> bool:
        """Return whether this rank requires a copy in host memory at the end of this step, as `is_due`."""
        return self._memory is not None and self._memory.is_due(step)

    @property
    def is_copying(self) -> bool:
        """Whether this rank still makes a copy in host memory."""
        return self._memory is not None and self._memory.is_busy

    def copy(self, state: State) -> None:
        """Start to copy the state to host memory. The state may change after the next `wait_for_staging`."""
        assert self._memory is not None, "a copy is due only with it"
        self._memory.save(state)

    def poll(self) -> list[str]:
        """Return the URIs of the saves that are complete, each once."""
        return self._writer.poll()

    def wait(self) -> list[str]:
        """Wait for the current save, then return the same as `poll`. Raises OSError if the newest save has failed."""
        saved = self._writer.wait()
        if self._writer.last_failure is not None:
            raise self._writer.last_failure
        return saved

    def finish(self, state: State, before_retry: Callable[[], None] = lambda: None) -> list[str]:
        """Wait for the last save, then return the same as `poll`. Repeat it if it fails, after `before_retry`.

        Raises OSError when it has failed FINAL_ATTEMPTS times, and RefusedError at once.
        """
        saved: list[str] = []
        for attempt in range(1, FINAL_ATTEMPTS + 1):
            saved += self._writer.wait()
            failure = self._writer.last_failure
            if failure is None:
                return saved
            if isinstance(failure, RefusedError) or attempt == FINAL_ATTEMPTS:
                raise failure
            before_retry()
            self.save(state)
        raise AssertionError("unreachable")

    @property
    def is_saving(self) -> bool:
        """Whether a save has started that `poll` has not recorded yet as complete or failed."""
        return self._writer.is_saving

    @property
    def is_retrying(self) -> bool:
        """Whether this rank repeats a save, because the storage does not respond."""
        return self._writer.is_retrying

    @property
    def failed_saves(self) -> int:
        """Number of saves that have failed in this process."""
        return self._writer.failed_saves

    def pop_stall_seconds(self) -> float:
        """Return the seconds that training has waited for checkpoints since the last call."""
        return self._writer.pop_stall_seconds()

    def close(self) -> None:
        """Wait for the current save, whether it fails or not."""
        self._writer.close()
        if self._memory is not None:
            self._memory.close()

    def list_complete(self) -> list[str]:
        """Return the URIs of the complete checkpoints, oldest first. A single rank may call it."""
        steps = [step for step in list_steps(self._storage) if is_complete(self._storage, step)]
        return [f"{self._storage.uri}{folder_name(step)}/" for step in steps]

    def contains(self, uri: str) -> bool:
        """Return whether the checkpoint at `uri` is one of this run."""
        return uri.startswith(_MEMORY) or uri.rstrip("/").rpartition("/")[0] + "/" == self._storage.uri

    def _record_times(self, times: SaveTimes) -> None:
        self._cadence.record_times(times)
        if dist.get_rank(self._group) == 0 and self._config.interval_steps is None:
            text = "the save took %.1f s and delayed training by %.3f s: a save every %.0f s"
            log.info(text, times.seconds, times.stall_seconds, self._cadence.interval_seconds)

    def _delete_old(self, saved: int) -> None:
        try:
            apply_retention(self._storage, saved, self._config)
        except OSError as error:
            log.warning("old checkpoints not deleted, retrying after the next save: %s", error)
