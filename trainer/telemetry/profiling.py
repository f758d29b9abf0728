"""Traces by torch.profiler, of the configured steps or on request by a file.

`touch METRICS_DIR/profile-request` on a node requests a trace of 3 steps of all its ranks; with rank numbers in the
file, of these ranks only. Traces are written to results/profiles/, for chrome://tracing or ui.perfetto.dev.
"""

import gzip
import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from trainer.settings import Environment
from trainer.storage import Storage
from trainyard.config.training.config import ProfileConfig

_REQUESTED_STEPS = 3
_log = logging.getLogger(__name__)


class Profiler:
    """Profiles steps of one rank. The loop runs each step in `step`."""

    def __init__(
        self, config: ProfileConfig | None, environment: Environment, results: Storage, device: torch.device
    ) -> None:
        self._config, self._environment, self._results, self._device = config, environment, results, device
        self._profile: profile | None = None
        self._first = self._last = 0
        self._handled_request: int | None = None  # modification time of the last request: its file is removed later
        self._remove_request_after: int | None = None

    @property
    def is_tracing(self) -> bool:
        """Whether this step is traced, so that a trace may be saved when it is complete."""
        return self._profile is not None

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Profile one training step if its trace is requested.

        A trace that an exception interrupts is discarded; a trace that cannot be saved is logged. Neither ends the job.
        """
        self._start_if_requested(number)
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
        self._stop_if_complete(number)

    def _start_if_requested(self, number: int) -> None:
        is_requested = self._read_request(number)
        is_configured = self._config is not None and number == self._config.first_step
        if self._profile is not None:
            return
        if self._config is not None and is_configured and self._environment.rank in self._config.ranks:
            self._start(number, self._config.steps)
        elif is_requested:
            self._start(number, _REQUESTED_STEPS)

    def _start(self, number: int, steps: int) -> None:
        self._first, self._last = number, number + steps - 1
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._device.type == "cuda" else [])]
        self._profile = profile(activities=activities, record_shapes=True)
        self._profile.start()

    def _read_request(self, number: int) -> bool:
        """Whether there is a new request that includes this rank."""
        file, environment = self._environment.profile_request, self._environment
        try:
            modified, text = file.stat().st_mtime_ns, file.read_text()
        except OSError:
            return False
        if modified == self._handled_request:
            return False
        self._handled_request = modified
        if environment.local_rank == 0:  # when it removes the file, the others have read it: steps are synchronous
            self._remove_request_after = number + _REQUESTED_STEPS - 1
        return not text.split() or str(environment.rank) in text.split()

    def _stop_if_complete(self, number: int) -> None:
        if self._profile is not None and number >= self._last:
            finished, self._profile = self._profile, None
            finished.stop()
            name = f"step-{self._first:08d}-rank-{self._environment.rank:05d}.trace.json.gz"
            try:
                self._save(finished, name)
            except (OSError, RuntimeError) as error:  # the profiler reports a full disk as a RuntimeError
                _log.warning("trace %s not saved: %s", name, error)
        if self._remove_request_after is not None and number >= self._remove_request_after:
            self._environment.profile_request.unlink(missing_ok=True)
            self._remove_request_after = None

    def _save(self, finished: profile, name: str) -> None:
        with tempfile.TemporaryDirectory(prefix="trainyard-trace-") as folder:
            trace, compressed = Path(folder) / "trace.json", Path(folder) / name
            finished.export_chrome_trace(str(trace))
            compressed.write_bytes(gzip.compress(trace.read_bytes(), compresslevel=5))
            self._results.upload(compressed, f"profiles/{name}")
        _log.info("trace of steps %d to %d: %sprofiles/%s", self._first, self._last, self._results.uri, name)
