"""Durations of the phases of a training step."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

PHASES = ("data", "forward", "backward", "optimizer")
_WAITING = "waiting"


class StepTimer:
    """Measures the phases of each step; repeated passes of a phase within a step are added.

    On a GPU by CUDA events in the stream of the training thread: GPU work is asynchronous, so the host's clock would
    count it in the phase that first waits for it. `data` is the waiting time of the host, on any device.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self._host = _zeros()
        self.waiting_seconds = 0.0  # of the step that was read last
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

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
        if self._stream is None or name == "data":
            started = time.perf_counter()
            yield
            self._host[name] += time.perf_counter() - started
        else:
            first = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            last = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            first.record(self._stream)
            yield
            last.record(self._stream)
            self._events.append((name, first, last))

    def read(self) -> dict[str, float]:
        """Return and reset the seconds of each phase. Waits for the measured GPU work: call it after the step."""
        seconds, self._host = self._host, _zeros()
        events, self._events = self._events, []
        if events:
            events[-1][2].synchronize()
        for name, first, last in events:
            seconds[name] += first.elapsed_time(last) / 1e3
        self.waiting_seconds = seconds.pop(_WAITING)
        return seconds


def _zeros() -> dict[str, float]:
    return dict.fromkeys((*PHASES, _WAITING), 0.0)
