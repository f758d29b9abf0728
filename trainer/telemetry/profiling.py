"""Traces by torch.profiler, of the configured steps or on request by a file.

`touch METRICS_DIR/profile-request` on a node requests a trace of 3 steps of all its ranks; with rank numbers in the
file, of these ranks only. Traces are written to results/profiles/, for chrome://tracing or ui.perfetto.dev.
"""

import gzip
import logging
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from trainer.settings import Environment
from trainer.storage import Storage
from trainyard.config.training.config import ProfileConfig

UPLOAD_TIMEOUT_SECONDS = 60.0  # of the traces that are not uploaded at the end of the job
_REQUESTED_STEPS = 3
_log = logging.getLogger(__name__)


class Profiler:
    """Profiles steps of one rank. The loop runs each step in `step`, and then calls `complete_step`.

    The tracer runs without recording in the step before the first traced step, so that its start is not in the trace.
    If the process has no earlier step, it does not.
    """

    def __init__(
        self, config: ProfileConfig | None, environment: Environment, results: Storage, device: torch.device
    ) -> None:
        self._config, self._environment, self._results, self._device = config, environment, results, device
        self._profile: profile | None = None
        self._first = self._last = 0  # traced steps
        self._has_run_step = False  # in this process
        self._handled_request: int | None = None  # modification time of the last request: its file is removed later
        self._remove_request_after: int | None = None
        self._uploads: list[threading.Thread] = []

    @property
    def is_tracing(self) -> bool:
        """Whether the tracer runs, so that `complete_step` may take longer than a step."""
        return self._profile is not None

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Profile one training step if its trace is requested. An exception discards the trace."""
        self._start_if_requested(number)
        self._has_run_step = True
        if self._profile is None:
            yield
            return
        try:
            with record_function(f"step {number}"):
                yield
        except BaseException:
            self.discard()
            raise

    def complete_step(self, number: int) -> None:
        """Start or end the recording of steps, after the duration of step `number` was measured.

        A thread writes a complete trace to the results. A trace that cannot be saved is logged.
        """
        if self._profile is not None:
            self._profile.step()
            if number >= self._last:
                self._save_later(self._profile, self._first, self._last)
                self.discard()
        if self._remove_request_after is not None and number >= self._remove_request_after:
            self._environment.profile_request.unlink(missing_ok=True)
            self._remove_request_after = None

    def discard(self) -> None:
        """Stop the tracer. The steps that it has recorded since the last complete trace are lost."""
        if self._profile is not None:
            stopped, self._profile = self._profile, None
            stopped.stop()

    def wait_for_uploads(self) -> None:
        """Wait until the traces are uploaded, at most UPLOAD_TIMEOUT_SECONDS."""
        deadline = time.monotonic() + UPLOAD_TIMEOUT_SECONDS
        for thread in self._uploads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if waiting := [thread.name for thread in self._uploads if thread.is_alive()]:
            _log.warning("not saved within %.0f s: %s", UPLOAD_TIMEOUT_SECONDS, ", ".join(waiting))

    def _start_if_requested(self, number: int) -> None:
        is_requested = self._read_request(number)
        if self._profile is not None:
            return
        warmup = 1 if self._has_run_step else 0
        config = self._config
        if config is not None and self._environment.rank in config.ranks and self._is_start(config, number):
            self._start(config.first_step, config.steps, number)
        elif is_requested:
            self._start(number + warmup, _REQUESTED_STEPS, number)

    def _is_start(self, config: ProfileConfig, number: int) -> bool:
        """Whether the tracer of the configured steps starts with this step: the step before, if there is one."""
        return number == config.first_step - 1 or (number == config.first_step and not self._has_run_step)

    def _start(self, first: int, steps: int, number: int) -> None:
        """Start the tracer in step `number`, to record `steps` steps from step `first` on."""
        self._first, self._last = first, first + steps - 1
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._device.type == "cuda" else [])]
        recorded = schedule(wait=0, warmup=first - number, active=steps, repeat=1)
        self._profile = profile(activities=activities, schedule=recorded, record_shapes=True)
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
            self._remove_request_after = number + _REQUESTED_STEPS
        return not text.split() or str(environment.rank) in text.split()

    def _save_later(self, finished: profile, first: int, last: int) -> None:
        """Save a trace in a daemon thread: training and process exit do not wait for an unresponsive storage."""
        name = f"step-{first:08d}-rank-{self._environment.rank:05d}.trace.json.gz"
        thread = threading.Thread(target=self._save, args=(finished, name, first, last), name=name, daemon=True)
        thread.start()
        self._uploads = [*(upload for upload in self._uploads if upload.is_alive()), thread]

    def _save(self, finished: profile, name: str, first: int, last: int) -> None:
        try:
            with tempfile.TemporaryDirectory(prefix="trainyard-trace-") as folder:
                trace, compressed = Path(folder) / "trace.json", Path(folder) / name
                finished.export_chrome_trace(str(trace))
                compressed.write_bytes(gzip.compress(trace.read_bytes(), compresslevel=5))
                self._results.upload(compressed, f"profiles/{name}", threads=False)
        except (OSError, RuntimeError) as error:  # the profiler reports a full disk as a RuntimeError
            _log.warning("trace %s not saved: %s", name, error)
        else:
            _log.info("trace of steps %d to %d: %sprofiles/%s", first, last, self._results.uri, name)
