"""What a step spends its time on, phase by phase."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

PHASES = ("data", "forward", "backward", "optimizer")


class Clock:
    """Times one step after the other; a phase's passes of one step add up.

    On a GPU by CUDA events in the stream of the training thread: the host goes on while the GPU works, so its own clock
    would charge all of it to whatever waits first. `data` is the host's waiting, on any device.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self._host = dict.fromkeys(PHASES, 0.0)
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Around one pass of a phase, one of PHASES. Nothing waits for the GPU here.

        A pass that an exception cuts short does not count.
        """
        assert name in PHASES, name
        if self._stream is None or name == "data":
            begun = time.perf_counter()
            yield
            self._host[name] += time.perf_counter() - begun
        else:
            first = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            last = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            first.record(self._stream)
            yield
            last.record(self._stream)
            self._events.append((name, first, last))

    def read(self) -> dict[str, float]:
        """Seconds of each phase since the last reading. Waits until the GPU has done what was timed: after the step."""
        spent, self._host = self._host, dict.fromkeys(PHASES, 0.0)
        events, self._events = self._events, []
        if events:
            events[-1][2].synchronize()
        for name, first, last in events:
            spent[name] += first.elapsed_time(last) / 1e3
        return spent
