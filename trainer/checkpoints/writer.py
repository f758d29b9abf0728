"""Saving beside training: the state is copied to the host's memory, and one thread writes the copy.

The copy is made while the next step computes its gradients, and is complete before the optimizer changes a weight; what
that step's forward pass changes, the buffers, is copied before it. The writing has a process group of its own, so that
its collectives never meet those of training.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_saver import save

from trainer.checkpoints.failures import insist, together
from trainer.checkpoints.files import writer
from trainer.checkpoints.staging import Stager
from trainer.checkpoints.state import State, generators


class Writer:
    """One save at a time, by all ranks of the group together. Whoever makes one closes it."""

    def __init__(self, group: dist.ProcessGroup, *, asynchronous: bool) -> None:
        self._group = group
        self._stager = Stager() if asynchronous else None
        self._thread = _thread() if asynchronous else None
        self._staged: Future[dict[str, Any]] | None = None
        self._writing: Future[str] | None = None
        self._written: list[str] = []
        self._stall = 0.0

    def save(self, state: State, uri: str, begin: Callable[[], None], finish: Callable[[], None]) -> None:
        """Begin to save, once the last save is through. `begin` comes before each try of the writing, `finish` after
        the commit, both where the writing is done.

        Raises what the last save failed with. Without a thread all is done on return.
        """
        with self._stalling():
            self._collect()
            content = {**state.snapshot(), **state.words(), "generators": {str(dist.get_rank()): generators()}}
            if self._thread is None:
                self._written.append(self._write(content, uri, begin, finish))
                return
            assert self._stager, "closed"
            staged = self._staged = self._thread.submit(self._stager.stage(content))
            self._writing = self._thread.submit(lambda: self._write(staged.result(), uri, begin, finish))

    def before_update(self) -> None:
        """Call before weights or optimizer change: waits until the copy is complete."""
        if self._staged is not None:
            with self._stalling():
                self._staged.result()
            self._staged = None

    def poll(self) -> list[str]:
        """URIs of the saves that are through, each told once. Raises OSError at once where one has failed."""
        if self._writing is not None and self._writing.done():
            self._collect()
        written, self._written = self._written, []
        return written

    def wait(self) -> list[str]:
        """As `poll`, when nothing is being written any more."""
        with self._stalling():
            self._collect()
        return self.poll()

    def stalled(self) -> float:
        """Seconds that training has lost to checkpoints since this was last asked."""
        stall, self._stall = self._stall, 0.0
        return stall

    def close(self) -> None:
        """Wait for what is being written, whatever becomes of it, and let memory and thread go."""
        if self._thread:
            self._thread.shutdown()
        self._stager = self._staged = self._writing = None

    def _collect(self) -> None:
        self.before_update()
        if self._writing is not None:
            writing, self._writing = self._writing, None
            self._written.append(writing.result())

    def _write(self, content: dict[str, Any], uri: str, begin: Callable[[], None], finish: Callable[[], None]) -> str:
        def attempt() -> None:
            together(begin, self._group)
            save(content, storage_writer=writer(uri, staged=self._thread is not None), process_group=self._group)

        insist(attempt, "saving", uri)
        finish()
        return uri

    @contextmanager
    def _stalling(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self._stall += time.perf_counter() - began


def _thread() -> ThreadPoolExecutor:
    """On this thread's device, as each begins on the first one, where it would take memory."""
    name, accelerator = "checkpoint", torch.accelerator
    if not accelerator.is_available():
        return ThreadPoolExecutor(1, name)
    return ThreadPoolExecutor(1, name, accelerator.set_device_index, (accelerator.current_device_index(),))
