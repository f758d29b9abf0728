"""Traces by torch.profiler: of the steps that the configuration names, and of the next ones whenever a file asks.

`touch METRICS_DIR/profile-request` on a node asks for 3 steps of all its ranks; ranks written in the file, of those
only.
The traces lie under results/profiles/, for chrome://tracing or ui.perfetto.dev.
"""

import gzip
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from trainer.settings import Environment
from trainer.storage import Storage
from trainyard.config.training.config import ProfileConfig

_STEPS = 3  # on request


class Profiler:
    """Each rank has one, and goes through each step in it."""

    def __init__(
        self, config: ProfileConfig | None, environment: Environment, results: Storage, device: torch.device
    ) -> None:
        self._config, self._environment, self._results, self._device = config, environment, results, device
        self._profile: profile | None = None
        self._first = self._last = 0
        self._seen: int | None = None  # the request that was taken up, by its time: it stays until it is answered
        self._remove_after: int | None = None

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Around one step of training. A trace that an exception cuts short is dropped, and what can't be written or
        copied is told: neither ends the job."""
        self._begin(number)
        if self._profile is None:
            yield
        else:
            try:
                with record_function(f"step {number}"):
                    yield
            except BaseException:
                self._profile.stop()
                self._profile = None
                raise
        self._end(number)

    def _begin(self, number: int) -> None:
        asked = self._requested(number)
        named = self._config is not None and number == self._config.first_step
        if self._profile is not None:
            return
        if self._config is not None and named and self._environment.rank in self._config.ranks:
            self._start(number, self._config.steps)
        elif asked:
            self._start(number, _STEPS)

    def _start(self, number: int, steps: int) -> None:
        self._first, self._last = number, number + steps - 1
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._device.type == "cuda" else [])]
        self._profile = profile(activities=activities, record_shapes=True)
        self._profile.start()

    def _requested(self, number: int) -> bool:
        """Whether a request that is new asks for this rank."""
        file, environment = self._environment.profile_request, self._environment
        try:
            made, text = file.stat().st_mtime_ns, file.read_text()
        except OSError:
            return False
        if made == self._seen:
            return False
        self._seen = made
        if environment.local_rank == 0:  # the others have seen it by then: all are at the same step
            self._remove_after = number + _STEPS - 1
        return not text.split() or str(environment.rank) in text.split()

    def _end(self, number: int) -> None:
        if self._profile is not None and number >= self._last:
            finished, self._profile = self._profile, None
            finished.stop()
            name = f"step-{self._first:08d}-rank-{self._environment.rank:05d}.trace.json.gz"
            try:
                self._keep(finished, name)
            except (OSError, RuntimeError) as error:  # the profiler tells of a full disk by a RuntimeError
                print(f"trace {name} not kept: {error}", flush=True)
        if self._remove_after is not None and number >= self._remove_after:
            self._environment.profile_request.unlink(missing_ok=True)
            self._remove_after = None

    def _keep(self, finished: profile, name: str) -> None:
        with tempfile.TemporaryDirectory(prefix="trainyard-trace-") as folder:
            plain, packed = Path(folder) / "trace.json", Path(folder) / name
            finished.export_chrome_trace(str(plain))
            packed.write_bytes(gzip.compress(plain.read_bytes(), compresslevel=5))
            self._results.upload(packed, f"profiles/{name}")
        print(f"trace of steps {self._first} to {self._last}: {self._results.uri}profiles/{name}", flush=True)
