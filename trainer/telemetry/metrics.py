"""Metrics of a run, written by rank 0: one line per step in the log and in a file, TensorBoard events, Prometheus.

The loggers of the configuration get the values of the TensorBoard events.
"""

import logging
import math
import queue
import re
import resource
import statistics
import threading
import time
from array import array
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import torch

from trainer.settings import Environment
from trainer.step import StepOutcome
from trainer.storage import Storage
from trainer.telemetry.flops import peak_flops, utilization
from trainer.telemetry.loggers.logger import Point
from trainer.telemetry.loggers.setup import open_loggers
from trainer.telemetry.loggers.thread import end_loggers
from trainer.telemetry.prometheus import PrometheusTextfile
from trainyard.config.training import TrainerConfig
from trainyard.config.training.low_precision import LOW_PRECISIONS
from trainyard.models.metrics import Figures, MetricLine

UPLOAD_TIMEOUT_SECONDS = 60.0  # of the last upload, at the end of the run
_WARMUP_STEPS = 5  # excluded from the figures: they compile and fill caches
_SCALARS = (  # fields of a MetricLine that TensorBoard and the loggers get
    *("loss", "validation_loss", "learning_rate", "gradient_norm", "loss_scale", "memory_gib", "reserved_gib"),
    *("allocation_retries", "mfu", "bf16_mfu", "expert_load_imbalance"),
    *("samples_per_second", "tokens_per_second", "step_seconds", "data_seconds", "forward_seconds"),
    *("backward_seconds", "optimizer_seconds", "checkpoint_seconds"),
)
_log = logging.getLogger(__name__)


class ModelInfo(Protocol):
    """Properties of a model that metrics need."""

    @property
    def parameters(self) -> int:
        """Number of trainable parameters."""

    @property
    def flops(self) -> float | None:
        """FLOPs of one sample's forward and backward pass; None if unknown."""


class Metrics:
    """Writes metrics.jsonl, trainer.prom and tensorboard/ in METRICS_DIR, and uploads tensorboard/ to the results.

    A thread writes: training does not wait for the file system. An error of it is raised by the next call.

    On a cluster the node's agent uploads metrics.jsonl; a standalone run uploads it here.
    """

    def __init__(
        self, config: TrainerConfig, environment: Environment, results: Storage, model: ModelInfo, device: torch.device
    ) -> None:
        # This import takes 0.6 s: only on rank 0.
        from torch.utils.tensorboard import SummaryWriter

        self._config, self._environment, self._results = config, environment, results
        self._model, self._device = model, device
        self._peak_flops = peak_flops(device, config.precision)
        self._bf16_peak_flops = peak_flops(device, "bf16") if config.precision in LOW_PRECISIONS else None
        self._tokens = None if config.model.kind == "images" else config.batch_size * config.model.sequence_length
        folder = environment.metrics_dir
        folder.mkdir(parents=True, exist_ok=True)
        self._lines = (folder / "metrics.jsonl").open("a", buffering=1)
        self._tensorboard_dir = folder / "tensorboard"
        self._tensorboard = SummaryWriter(str(self._tensorboard_dir))
        self._prometheus = PrometheusTextfile(folder / "trainer.prom", environment.run)
        self._loggers = open_loggers(config, environment, results)
        self._step_seconds = array("d")
        self._data_seconds, self._checkpoint_seconds, self._memory_gib = 0.0, 0.0, 0.0
        self._upload_thread: threading.Thread | None = None
        self._queue: queue.Queue[MetricLine | None] = queue.Queue()  # None: the end
        self._error: Exception | None = None
        self._writer = threading.Thread(target=self._write_lines, name="metrics", daemon=True)

    def log_start(self, resumed_from: str | None) -> None:
        """Log the model and the layout. `resumed_from`: URI of the checkpoint that the run resumes from."""
        config, world_size = self._config, self._environment.world_size
        layout = config.layout(world_size, self._environment.local_world_size)
        _log.info(
            "%s parameters, %s, %s, %d x %s (%s: pipeline %d, replicas %d, shards %d, context %d, tensor %d),"
            " %d micro-batches per step and rank, %s",
            f"{self._model.parameters:,}",
            config.model.kind,
            config.precision,
            world_size,
            self._device.type,
            config.parallel.data,
            layout.pipeline,
            layout.replicate,
            layout.shard,
            layout.context,
            layout.tensor,
            layout.accumulation,
            f"resumed from {resumed_from}" if resumed_from else "started without a checkpoint",
        )

    def record_step(
        self,
        outcome: StepOutcome,
        *,
        validation_loss: float | None,
        checkpoint_seconds: float,
        failed_checkpoints: int = 0,
    ) -> MetricLine:
        """Write the metrics of a step.

        `checkpoint_seconds`: part of the step that waited for checkpoints. `failed_checkpoints`: saves that have failed
        in this process.
        """
        step_seconds = outcome.step_seconds
        line = MetricLine(
            time=time.time(),
            attempt=self._environment.attempt,
            step=outcome.step,
            loss=outcome.loss,
            validation_loss=validation_loss,
            learning_rate=outcome.learning_rate,
            gradient_norm=outcome.gradient_norm,
            consumed=outcome.consumed,
            samples_per_second=self._config.batch_size / step_seconds,
            tokens_per_second=self._tokens / step_seconds if self._tokens else None,
            step_seconds=step_seconds,
            **{f"{phase}_seconds": seconds for phase, seconds in outcome.phase_seconds.items()},
            checkpoint_seconds=checkpoint_seconds,
            failed_checkpoints=failed_checkpoints,
            mfu=self._utilization(step_seconds, self._peak_flops),
            bf16_mfu=self._utilization(step_seconds, self._bf16_peak_flops),
            memory_gib=peak_memory_gib(self._device),
            **allocator_figures(self._device),
            loss_scale=outcome.loss_scale,
            expert_load_imbalance=outcome.expert_load_imbalance,
            skipped=outcome.gradient_norm is None,
        )
        self._step_seconds.append(step_seconds)
        self._data_seconds += line.data_seconds
        self._checkpoint_seconds += checkpoint_seconds
        self._memory_gib = line.memory_gib
        self._raise_error()
        self._queue.put(line)
        return line

    def figures(self) -> Figures | None:
        """Return the summary of the steps so far; None before the first step."""
        if not self._step_seconds:
            return None
        counted = self._step_seconds[min(_WARMUP_STEPS, len(self._step_seconds) // 2) :]
        seconds, total = statistics.median(counted), sum(self._step_seconds)
        return Figures(
            steps=len(counted),
            step_seconds=seconds,
            samples_per_second=self._config.batch_size / seconds,
            tokens_per_second=self._tokens / seconds if self._tokens else None,
            mfu=self._utilization(seconds, self._peak_flops),
            memory_gib=self._memory_gib,
            data_share=self._data_seconds / total,
            checkpoint_share=self._checkpoint_seconds / total,
        )

    def record_checkpoint(self, uri: str, *, publish: bool) -> None:
        """Log a saved checkpoint. `publish`: also start an upload of the metrics, unless one is in progress."""
        _log.info("saved %s", uri)
        for logger in self._loggers if publish else ():
            logger.publish()
        if publish and (self._upload_thread is None or not self._upload_thread.is_alive()):
            self._start_upload()

    def finish(self) -> None:
        """Upload all metrics and wait, at most UPLOAD_TIMEOUT_SECONDS. Raises an error of the file system."""
        deadline = time.monotonic() + UPLOAD_TIMEOUT_SECONDS
        self._wait_for_lines(UPLOAD_TIMEOUT_SECONDS)
        self._raise_error()
        if self._upload_thread is not None:
            self._upload_thread.join(max(0.0, deadline - time.monotonic()))
        if self._upload_thread is None or not self._upload_thread.is_alive():
            self._start_upload().join(max(0.0, deadline - time.monotonic()))
        if self._upload_thread is not None and self._upload_thread.is_alive():
            _log.warning(
                "metrics not uploaded: %s did not respond within %.0f s", self._results.uri, UPLOAD_TIMEOUT_SECONDS
            )

    def _start_upload(self) -> threading.Thread:
        """Upload in a daemon thread: training and process exit do not wait for a storage that does not respond."""
        self._upload_thread = threading.Thread(target=self._upload, name="metrics upload", daemon=True)
        self._upload_thread.start()
        return self._upload_thread

    def _upload(self) -> None:
        """Upload the metrics. An error is logged only: the next upload includes the same files."""
        try:
            self._wait_for_lines(UPLOAD_TIMEOUT_SECONDS)
            self._tensorboard.flush()
            for file in sorted(self._tensorboard_dir.iterdir()):
                self._results.upload(file, f"tensorboard/{file.name}", threads=False)
            if self._environment.is_standalone:
                self._results.upload(Path(self._lines.name), "metrics.jsonl", threads=False)
        except OSError as error:
            _log.warning("metrics not uploaded yet: %s", error)

    def _utilization(self, seconds: float, peak: float | None) -> float | None:
        if self._model.flops is None:
            return None
        flops = self._model.flops * self._config.batch_size
        return utilization(flops, seconds, self._environment.world_size, peak)

    def _write_lines(self) -> None:
        while True:
            line = self._queue.get()
            try:
                if line is None:
                    return
                if self._error is None:
                    self._write(line)
            except Exception as error:
                self._error = error
            finally:
                self._queue.task_done()

    def _wait_for_lines(self, seconds: float) -> None:
        """Wait until all lines are written, at most `seconds`. Logs how many are missing then."""
        with self._queue.all_tasks_done:
            if not self._queue.all_tasks_done.wait_for(lambda: not self._queue.unfinished_tasks, seconds):
                _log.warning("metrics of %d steps not written within %.0f s", self._queue.unfinished_tasks, seconds)

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _write(self, line: MetricLine) -> None:
        self._lines.write(line.model_dump_json() + "\n")
        self._prometheus.write(line)
        figures = {name: value for name in _SCALARS if (value := getattr(line, name)) is not None}
        for name, value in figures.items():
            self._tensorboard.add_scalar(name, value, line.step, line.time)
        for logger in self._loggers:
            logger.log(Point(step=line.step, time=line.time, figures=figures))
        _log.info("%s", format_step(line, self._config.steps))

    def __enter__(self) -> Self:
        self._writer.start()
        for logger in self._loggers:
            logger.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._queue.put(None)
        self._writer.join(UPLOAD_TIMEOUT_SECONDS)
        end_loggers(self._loggers, _exit_code(error))
        if self._writer.is_alive():  # the file system does not respond: the thread still uses the files
            return
        self._tensorboard.close()
        self._lines.close()


def _exit_code(error: BaseException | None) -> int:
    """Return the exit code of a job that ends with this exception, or without one."""
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        return error.code
    return 0 if error is None else 1


def format_step(line: MetricLine, steps: int) -> str:
    """Return the metrics of one step as a line for the log."""
    parts = [f"step {line.step}/{steps} loss {line.loss:.4f}"]
    if line.validation_loss is not None:
        parts.append(f"validation {line.validation_loss:.4f}")
    parts.append(f"lr {line.learning_rate:.2e}")
    parts.append("skipped: fp16 overflow" if line.gradient_norm is None else f"norm {line.gradient_norm:.3f}")
    parts.append(line.throughput)
    if line.mfu is not None:
        parts.append(f"mfu {line.mfu:.1%}")
    parts.append(f"{line.step_seconds * 1e3:,.0f} ms")
    parts.append(f"(data {line.data_seconds / line.step_seconds:.0%})")
    parts.append(f"{line.memory_gib:.2f} GiB")
    return " ".join(parts)


def peak_memory_gib(device: torch.device) -> float:
    """Return the peak memory so far: of tensors on a GPU, or resident in this process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**30  # macOS: bytes
    # On Linux ru_maxrss includes the program that started this process.
    (peak,) = re.findall(r"^VmHWM:\s+(\d+) kB", status.read_text(), re.MULTILINE)
    return int(peak) / 2**20


def allocator_figures(device: torch.device) -> dict[str, Any]:
    """Return `reserved_gib` and `allocation_retries` of a MetricLine; nothing on CPUs."""
    if device.type != "cuda":
        return {}
    retries = torch.cuda.memory_stats(device).get("num_alloc_retries", 0)
    return {"reserved_gib": torch.cuda.max_memory_reserved(device) / 2**30, "allocation_retries": retries}


def require_finite(step: int, loss: float, norm: float, learning_rate: float) -> None:
    """Raise FloatingPointError if the loss or the gradient norm is not finite, before the step changes a weight."""
    if not (math.isfinite(loss) and math.isfinite(norm)):
        raise FloatingPointError(
            f"step {step} at learning rate {learning_rate:.3g}: loss {loss}, gradient norm {norm}: training has"
            " diverged. This step changed no weights, and earlier checkpoints are unchanged. Decrease"
            " optimizer.learning_rate or optimizer.clip_norm, or increase optimizer.warmup_steps, and start the job"
            " again: it resumes from the newest checkpoint. If it diverges again, delete the newest checkpoints"
        )
