"""What a run tells while it runs, rank 0 alone: a line a step on stdout and in a file, TensorBoard events, and the
newest figures for Prometheus."""

import math
import re
import resource
import statistics
import threading
import time
from array import array
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import torch

from trainer.settings import Environment
from trainer.storage import Storage
from trainer.telemetry.flops import peak_flops, utilization
from trainer.telemetry.prometheus import TextFile
from trainyard.config.training import TrainerConfig
from trainyard.models.metrics import Figures, MetricLine

PATIENCE_SECONDS = 60.0  # for the copy at the end
_WARM_UP = 5  # steps that the figures leave out: they compile, and fill caches
_TOLD = ("loss", "validation_loss", "learning_rate", "gradient_norm", "loss_scale", "memory_gib", "mfu")
_SPEEDS = ("samples_per_second", "tokens_per_second", "step_seconds", "data_seconds", "forward_seconds")
_MORE = ("backward_seconds", "optimizer_seconds", "checkpoint_seconds")


class Trained(Protocol):
    """What is told of a model."""

    @property
    def parameters(self) -> int: ...

    @property
    def flops(self) -> float | None: ...  # of one sample, forward and backward; None where that is not known


class Done(Protocol):
    """How far the run is."""

    @property
    def step(self) -> int: ...

    @property
    def consumed(self) -> int: ...

    @property
    def last_loss(self) -> float: ...


class Metrics:
    """Writes metrics.jsonl, trainer.prom and tensorboard/ in METRICS_DIR, and copies what lasts under the results.

    On a cluster the node's agent ships metrics.jsonl; a run that is alone copies it, too.
    """

    def __init__(
        self, config: TrainerConfig, environment: Environment, results: Storage, model: Trained, device: torch.device
    ) -> None:
        # 0.6 s to import: only rank 0 pays it.
        from torch.utils.tensorboard import SummaryWriter

        self._config, self._environment, self._results = config, environment, results
        self._model, self._device = model, device
        self._peak = peak_flops(device, config.precision)
        self._tokens = None if config.model.kind == "images" else config.batch_size * config.model.sequence_length
        folder = environment.metrics_dir
        folder.mkdir(parents=True, exist_ok=True)
        self._lines = (folder / "metrics.jsonl").open("a", buffering=1)
        self._events = folder / "tensorboard"
        self._board = SummaryWriter(str(self._events))
        self._prometheus = TextFile(folder / "trainer.prom", environment.run)
        self._seconds, self._data, self._stalled, self._memory = array("d"), 0.0, 0.0, 0.0
        self._copying: threading.Thread | None = None

    def begin(self, origin: str | None) -> None:
        """The first words. `origin`: URI of the checkpoint that the run goes on from."""
        config, world_size = self._config, self._environment.world_size
        layout = config.layout(world_size, self._environment.local_world_size)
        print(
            f"{self._model.parameters:,} parameters, {config.model.kind}, {config.precision},"
            f" {world_size} x {self._device.type} ({config.parallel.data}: pipeline {layout.pipeline},"
            f" replicas {layout.replicate}, shards {layout.shard}, tensor {layout.tensor}),"
            f" {layout.accumulation} micro-batches a step and rank,"
            f" {f'resumed from {origin}' if origin else 'from the beginning'}",
            flush=True,
        )

    def step(
        self,
        progress: Done,
        *,
        validation_loss: float | None,
        learning_rate: float,
        gradient_norm: float | None,
        seconds: float,
        spent: Mapping[str, float],
        stalled: float,
        loss_scale: float | None = None,
        skipped: bool = False,
    ) -> MetricLine:
        """Tell of a step. `seconds`: since the end of the step before; of them `spent`: by phase (.timing), and
        `stalled`: lost to checkpoints."""
        batch = self._config.batch_size
        line = MetricLine(
            time=time.time(),
            attempt=self._environment.attempt,
            step=progress.step,
            loss=progress.last_loss,
            validation_loss=validation_loss,
            learning_rate=learning_rate,
            gradient_norm=gradient_norm,
            consumed=progress.consumed,
            samples_per_second=batch / seconds,
            tokens_per_second=self._tokens / seconds if self._tokens else None,
            step_seconds=seconds,
            **{f"{phase}_seconds": each for phase, each in spent.items()},
            checkpoint_seconds=stalled,
            mfu=self._utilization(seconds),
            memory_gib=peak_memory_gib(self._device),
            loss_scale=loss_scale,
            skipped=skipped,
        )
        self._seconds.append(seconds)
        self._data += line.data_seconds
        self._stalled += stalled
        self._memory = line.memory_gib
        self._write(line)
        return line

    def figures(self) -> Figures | None:
        """Of the steps so far; None before the first one."""
        if not self._seconds:
            return None
        counted = self._seconds[min(_WARM_UP, len(self._seconds) // 2) :]
        seconds, total = statistics.median(counted), sum(self._seconds)
        return Figures(
            steps=len(counted),
            step_seconds=seconds,
            samples_per_second=self._config.batch_size / seconds,
            tokens_per_second=self._tokens / seconds if self._tokens else None,
            mfu=self._utilization(seconds),
            memory_gib=self._memory,
            data_share=self._data / total,
            checkpoint_share=self._stalled / total,
        )

    def saved(self, uri: str, *, publish: bool) -> None:
        """A checkpoint is there. `publish`: what is told so far is copied beside training, unless a copy goes on."""
        print(f"saved {uri}", flush=True)
        if publish and (self._copying is None or not self._copying.is_alive()):
            self._copy()

    def finish(self) -> None:
        """Copy all of it, and wait for that; not for ever."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        if self._copying is not None:
            self._copying.join(PATIENCE_SECONDS)
        if self._copying is None or not self._copying.is_alive():
            self._copy().join(max(0.0, deadline - time.monotonic()))
        if self._copying is not None and self._copying.is_alive():
            print(f"metrics not copied: {self._results.uri} did not take them in {PATIENCE_SECONDS:.0f} s", flush=True)

    def _copy(self) -> threading.Thread:
        """Begin to. Nothing waits for this thread, the end of the process neither: its storage may not answer."""
        self._board.flush()
        self._copying = threading.Thread(target=self._publish, name="metrics", daemon=True)
        self._copying.start()
        return self._copying

    def _publish(self) -> None:
        """Where it fails that is told: the next copy holds what this one lacks."""
        try:
            for file in sorted(self._events.iterdir()):
                self._results.upload(file, f"tensorboard/{file.name}", threads=False)
            if self._environment.alone:
                self._results.upload(Path(self._lines.name), "metrics.jsonl", threads=False)
        except OSError as error:
            print(f"metrics not copied yet: {error}", flush=True)

    def _utilization(self, seconds: float) -> float | None:
        if self._model.flops is None:
            return None
        flops = self._model.flops * self._config.batch_size
        return utilization(flops, seconds, self._environment.world_size, self._peak)

    def _write(self, line: MetricLine) -> None:
        self._lines.write(line.model_dump_json() + "\n")
        self._prometheus.write(line)
        for name in (*_TOLD, *_SPEEDS, *_MORE):
            value = getattr(line, name)
            if value is not None:
                self._board.add_scalar(name, value, line.step, line.time)
        print(in_words(line, self._config.steps), flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._board.close()
        self._lines.close()


def in_words(line: MetricLine, steps: int) -> str:
    """One step for the log."""
    told = [f"step {line.step}/{steps} loss {line.loss:.4f}"]
    if line.validation_loss is not None:
        told.append(f"validation {line.validation_loss:.4f}")
    told.append(f"rate {line.learning_rate:.2e}")
    told.append("skipped: fp16 overflowed" if line.gradient_norm is None else f"norm {line.gradient_norm:.3f}")
    told.append(line.speed)
    if line.mfu is not None:
        told.append(f"mfu {line.mfu:.1%}")
    told.append(f"{line.step_seconds * 1e3:,.0f} ms")
    told.append(f"(data {line.data_seconds / line.step_seconds:.0%})")
    told.append(f"{line.memory_gib:.2f} GiB")
    return " ".join(told)


def peak_memory_gib(device: torch.device) -> float:
    """The most that tensors took on the GPU, or that the process had resident on a CPU, so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**30  # macOS: bytes
    # On Linux that figure would count what started this program, too.
    (peak,) = re.findall(r"^VmHWM:\s+(\d+) kB", status.read_text(), re.MULTILINE)
    return int(peak) / 2**20


def require_finite(step: int, loss: float, norm: float, learning_rate: float) -> None:
    """Raises FloatingPointError: a step on such a gradient would spoil every weight."""
    if not (math.isfinite(loss) and math.isfinite(norm)):
        raise FloatingPointError(
            f"step {step} at learning rate {learning_rate:.3g}: loss {loss}, gradient norm {norm}: training has"
            " diverged. This step changed no weight, and the checkpoints before it are as they were. Lower"
            " optimizer.learning_rate or optimizer.clip_norm, or raise optimizer.warmup_steps, and start again: it goes"
            " on from the newest checkpoint; where that diverges too, take away the newest ones"
        )
