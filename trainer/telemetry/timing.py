"""Durations of the phases of a training step."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch

PHASES = ("data", "forward", "backward", "optimizer")


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Durations of one step, seconds. `waiting`: for other ranks, part of the phases."""

    step: float
    phases: Mapping[str, float]
    waiting: float


class StepTimer:
    """Measures steps and their phases; repeated passes of a phase within a step are added.

    On a GPU by CUDA events in the stream of the training thread: GPU work is asynchronous, so the host's clock would
    count it in the phase that first waits for it. `data` is the waiting time of the host, on any device.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self.start()

    def start(self) -> None:
        """Start to measure a step."""
        self._host = dict.fromkeys((*PHASES, _WAITING), 0.0)
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
        self._started_at = time.perf_counter()
        self._start = self._record_event()

    def finish(self) -> Callable[[], StepTimes]:
        """End the step. Returns a function that waits for its GPU work, not for later work, and returns its times."""
        host, events, start, end = self._host, self._events, self._start, self._record_event()
        host_seconds = time.perf_counter() - self._started_at

        def read() -> StepTimes:
            seconds = dict(host)
            if start is None or end is None:
                step = host_seconds
            else:
                end.synchronize()
                step = start.elapsed_time(end) / 1e3
            for name, first, last in events:
                seconds[name] += first.elapsed_time(last) / 1e3
            waiting = seconds.pop(_WAITING)
            return StepTimes(step=step, phases=seconds, waiting=waiting)

        return read

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure one pass of a phase, one of PHASES, without waiting for the GPU.

        A pass that an exception interrupts does not count.
        """
        assert name in PHASES, name
        with self._measure(name):
            yield

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Measure a time in which this rank waits for other ranks. It is part of a phase."""
        with self._measure(_WAITING):
            yield

    @contextmanager
    def _measure(self, name: str) -> Iterator[None]:
        first = None if name == "data" else self._record_event()
        started = time.perf_counter()
        yield
        last = None if name == "data" else self._record_event()
        if first is None or last is None:
            self._host[name] += time.perf_counter() - started
        else:
            self._events.append((name, first, last))

    def _record_event(self) -> torch.cuda.Event | None:
        if self._stream is None:
            return None
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event


_WAITING = "waiting"
