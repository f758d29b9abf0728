"""Parts are made by processes of their own: Python that tokenizes or decodes images keeps one core busy, never two."""

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

from trainer.prepare.parts import Made, Part
from trainer.prepare.work import record
from trainyard.base import InputError, Problem

# Processes that can run at once here.
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
Advance = Callable[[int], None]


class Maker(Protocol):
    """What is done to a part; it crosses to the processes, so it holds plain data only."""

    def make(self, part: Part[Any], work: Path, advance: Advance) -> Made:
        """Upload the part's shard and leave what it holds out in the work folder. `advance` counts its bytes.

        Raises InputError where the part's data can't be used.
        """


class _Stopped(Exception):
    """Another part failed, or the user interrupts."""


def run(
    maker: Maker, parts: Sequence[Part[Any]], work: Path, workers: int, advance: Advance
) -> Iterator[tuple[Part[Any], Made]]:
    """Each part as it is done. The first that fails ends it all: InputError, or OSError for the machine and for S3."""
    context = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
    done, stop = context.Value("q", 0), context.Value("b", 0)
    pool = ProcessPoolExecutor(workers, context, _begin, (maker, work, done, stop))
    told = 0
    try:
        waiting: dict[Future[Made | list[Problem]], Part[Any]] = {}
        with _no_interrupts():
            waiting |= {pool.submit(_make, part): part for part in parts}
        while waiting:
            ready, _ = wait(waiting, timeout=0.25, return_when=FIRST_COMPLETED)
            advance(done.value - told)
            told = done.value
            for future in ready:
                made = future.result()
                if isinstance(made, list):
                    raise InputError(made)
                yield waiting.pop(future), made
    except BrokenProcessPool:
        why = "a process was killed, as the system does where memory runs out"
        raise InputError([Problem(key="--workers", value=workers, why=why, fix="Take fewer")]) from None
    finally:
        stop.value = 1
        pool.shutdown(cancel_futures=True)


@contextmanager
def _no_interrupts() -> Iterator[None]:
    """Processes that begin here never see Ctrl-C, not even while they import: the parent does, and sets `stop`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(maker: Maker, work: Path, done: Any, stop: Any) -> None:
    global _state
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _state = (maker, work, done, stop)


_state: tuple[Maker, Path, Any, Any]


def _end_with_parent() -> None:
    """A parent that is killed can't end its processes."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait_for([parent.sentinel])
    os._exit(1)


def _make(part: Part[Any]) -> Made | list[Problem]:
    maker, work, done, stop = _state

    def advance(count: int) -> None:
        if stop.value:
            raise _Stopped
        with done.get_lock():
            done.value += count

    try:
        made = maker.make(part, work, advance)
    except InputError as error:
        return error.problems
    except OSError as error:
        raise OSError(str(error)) from None  # of a type that every process knows
    record(work, part.address, made)
    return made
