"""Saves checkpoints asynchronously: the state is copied to host memory, and one thread writes the copy.

The copy is made while the next step computes its gradients, and it is complete before the optimizer changes a weight.
The buffers, which the forward pass of that step changes, are copied before. The writer has a separate process group, so
that its collectives don't mix with those of training.
"""

import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_saver import save

from trainer.checkpoints.cadence import SaveTimes
from trainer.checkpoints.failures import RefusedError, on_all_ranks, retry
from trainer.checkpoints.files import create_storage_writer
from trainer.checkpoints.staging import Stager
from trainer.checkpoints.state import State, rng_state

log = logging.getLogger(__name__)


class Writer:
    """Writes one checkpoint at a time, on all ranks of the group. Its creator must close it.

    A save that fails is logged and counted on all ranks: training continues, and a later save may succeed. Only a
    storage that refuses the first save of the process is an error at once: no other save would succeed either.
    `failed_saves`: saves that have failed. `last_failure`: that of the newest save; None if it succeeded.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        *,
        asynchronous: bool,
        record_times: Callable[[SaveTimes], None] = lambda times: None,
    ) -> None:
        """`record_times` is called for each complete save, in the thread of the caller of the other methods."""
        self._group, self._record_times = group, record_times
        self._stager = Stager() if asynchronous else None
        self._thread = _create_thread() if asynchronous else None
        self._staged: Future[dict[str, Any]] | None = None
        self._pending: Future[str] | None = None
        self._complete: list[str] = []
        self._stall_seconds = 0.0
        self._started_at = self._save_seconds = self._save_stall_seconds = 0.0  # of the newest save
        self._has_saved, self._attempts = False, 0
        self.failed_saves = 0
        self.last_failure: OSError | None = None

    @property
    def is_saving(self) -> bool:
        """Whether a save has started whose end is not recorded yet."""
        return self._pending is not None

    @property
    def is_retrying(self) -> bool:
        """Whether a save is in progress that has failed at least once."""
        return self.is_saving and self._attempts > 1

    def save(
        self, state: State, uri: str, before_attempt: Callable[[], None], after_commit: Callable[[], None]
    ) -> None:
        """Start to save, after the previous save has ended.

        `before_attempt` runs before each attempt to write, `after_commit` after the commit, both in the thread that
        writes. Without asynchronous saves the checkpoint is complete when this method returns.
        """
        with self._measure_stall():
            self._finish_pending()
        self._started_at, self._save_stall_seconds = time.perf_counter(), 0.0
        with self._measure_stall():
            content = {**state.snapshot(), **state.values(), "generators": {str(dist.get_rank()): rng_state()}}
            if self._thread is None:
                self._record(lambda: self._write(content, uri, before_attempt, after_commit))
                return
            assert self._stager, "closed"
            staged = self._staged = self._thread.submit(self._stager.stage(content))
            self._pending = self._thread.submit(lambda: self._write(staged.result(), uri, before_attempt, after_commit))

    def wait_for_staging(self) -> None:
        """Wait until the copy is complete. Call it before weights or optimizer state change."""
        if self._staged is not None:
            with self._measure_stall():
                self._staged.result()
            self._staged = None

    def poll(self) -> list[str]:
        """Return the URIs of the saves that are complete, each once."""
        if self._pending is not None and self._pending.done():
            self._finish_pending()
        complete, self._complete = self._complete, []
        return complete

    def wait(self) -> list[str]:
        """Wait for the current save, then return the same as `poll`."""
        with self._measure_stall():
            self._finish_pending()
        return self.poll()

    def pop_stall_seconds(self) -> float:
        """Return the seconds that training has waited for checkpoints since the last call."""
        stall, self._stall_seconds = self._stall_seconds, 0.0
        return stall

    def close(self) -> None:
        """Wait for the current save, whether it fails or not, and release memory and thread."""
        if self._thread:
            self._thread.shutdown()
        self._stager = self._staged = self._pending = None

    def _finish_pending(self) -> None:
        self.wait_for_staging()
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self._record(pending.result)

    def _record(self, save: Callable[[], str]) -> None:
        """Record the URI of a save, or its failure. Raises RefusedError if the first save is refused."""
        try:
            self._complete.append(save())
        except OSError as error:
            if isinstance(error, RefusedError) and not self._has_saved:
                raise
            self.failed_saves, self.last_failure = self.failed_saves + 1, error
            if dist.get_rank(self._group) == 0:
                log.warning("checkpoint not saved, training continues: %s", error)
        else:
            self._has_saved, self.last_failure = True, None
            stall = self._save_stall_seconds if self._thread else self._save_seconds
            self._record_times(SaveTimes(stall_seconds=stall, seconds=self._save_seconds))

    def _write(
        self,
        content: dict[str, Any],
        uri: str,
        before_attempt: Callable[[], None],
        after_commit: Callable[[], None],
    ) -> str:
        self._attempts = 0

        def attempt() -> None:
            self._attempts += 1
            on_all_ranks(before_attempt, self._group)
            storage_writer = create_storage_writer(uri, staged=self._thread is not None)
            save(content, storage_writer=storage_writer, process_group=self._group)

        retry(attempt, "saving", uri)
        after_commit()
        self._save_seconds = time.perf_counter() - self._started_at
        return uri

    @contextmanager
    def _measure_stall(self) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            elapsed = time.perf_counter() - start
            self._stall_seconds += elapsed
            self._save_stall_seconds += elapsed


def _create_thread() -> ThreadPoolExecutor:
    """Create the thread on this thread's device: by default it would use the first device and allocate memory there."""
    name, accelerator = "checkpoint", torch.accelerator
    if not accelerator.is_available():
        return ThreadPoolExecutor(1, name)
    return ThreadPoolExecutor(1, name, accelerator.set_device_index, (accelerator.current_device_index(),))
