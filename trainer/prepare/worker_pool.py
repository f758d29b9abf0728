"""Converts parts in a pool of processes: Python code that tokenizes or decodes images uses a single core."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import wait as wait_for
from pathlib import Path
from typing import Any, Protocol

from trainer.prepare.partitioning import Part, PartResult
from trainer.prepare.work_folder import write_result
from trainyard.errors import InputError, Problem

# Number of cores that this process may use.
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
Advance = Callable[[int], None]


class ShardBuilder(Protocol):
    """Converts a part to a shard. It is pickled for the processes, so that it holds plain data only."""

    def build(self, part: Part[Any], work: Path, advance: Advance) -> PartResult:
        """Upload the part's shard, and write the held-out samples to the work folder.

        `advance` is called with the number of source bytes that are done. Raises InputError if the data is invalid.
        """


class _StoppedError(Exception):
    """Another part failed, or the user interrupted the run."""


def build_parts(
    builder: ShardBuilder, parts: Sequence[Part[Any]], work: Path, workers: int, advance: Advance
) -> Iterator[tuple[Part[Any], PartResult]]:
    """Yield each part with its result, as they complete.

    The first failure stops all processes. Raises InputError for invalid data, OSError for failures of machine and S3.
    """
    context = multiprocessing.get_context("spawn")  # a fork of a process with threads may deadlock
    done, stop = context.Value("q", 0), context.Value("b", 0)
    pool = ProcessPoolExecutor(workers, context, _initialize, (builder, work, done, stop))
    reported = 0
    try:
        pending: dict[Future[PartResult | list[Problem]], Part[Any]] = {}
        with _interrupts_blocked():
            pending |= {pool.submit(_build, part): part for part in parts}
        while pending:
            ready, _ = wait(pending, timeout=0.25, return_when=FIRST_COMPLETED)
            advance(done.value - reported)
            reported = done.value
            for future in ready:
                result = future.result()
                if isinstance(result, list):
                    raise InputError(result)
                yield pending.pop(future), result
    except BrokenProcessPool:
        reason = "a process was killed, as the system does when memory runs out"
        raise InputError([Problem("--workers", workers, reason, "Use fewer", "worker_killed")]) from None
    finally:
        stop.value = 1
        pool.shutdown(cancel_futures=True)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Start processes that ignore Ctrl-C, also while they import: the parent handles it and sets `stop`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _initialize(builder: ShardBuilder, work: Path, done: Any, stop: Any) -> None:
    global _state
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    _state = (builder, work, done, stop)


_state: tuple[ShardBuilder, Path, Any, Any]


def _exit_with_parent() -> None:
    """Exit when the parent exits: a killed parent can't stop its processes."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait_for([parent.sentinel])
    os._exit(1)


def _build(part: Part[Any]) -> PartResult | list[Problem]:
    builder, work, done, stop = _state

    def advance(count: int) -> None:
        if stop.value:
            raise _StoppedError
        with done.get_lock():
            done.value += count

    try:
        result = builder.build(part, work, advance)
    except InputError as error:
        return error.problems
    except OSError as error:
        raise OSError(str(error)) from None  # subclasses of OSError may not be importable in the parent
    write_result(work, part.fingerprint, result)
    return result
