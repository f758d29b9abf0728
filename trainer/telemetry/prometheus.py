"""A run's newest figures as Prometheus' text format, for the textfile collector of the node's exporter.

Names as Prometheus' conventions have them: base units, in the name; `_total` for what only grows. Source:
prometheus.io/docs/practices/naming and docs/instrumenting/exposition_formats.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from trainer.telemetry.timing import PHASES
from trainyard.models.metrics import MetricLine

_GIB = 2**30
Samples = Iterable[tuple[Mapping[str, str], float | None]]


class TextFile:
    """`trainer.prom`: whoever reads it sees all of one step."""

    def __init__(self, path: Path, run: str) -> None:
        self._path, self._run = path, run
        self._skipped = 0
        self._validation_loss: float | None = None  # the last one: between held-out losses it stands

    def write(self, line: MetricLine) -> None:
        self._skipped += line.skipped
        if line.validation_loss is not None:
            self._validation_loss = line.validation_loss
        whole = line.model_copy(update={"validation_loss": self._validation_loss})
        partial = self._path.with_suffix(".prom.partial")  # the collector reads *.prom only
        partial.write_text(text_of(whole, self._run, self._skipped))
        partial.rename(self._path)


def text_of(line: MetricLine, run: str, skipped: int) -> str:
    """The whole file. `skipped`: steps of this attempt that changed no weight."""
    bytes_ = line.memory_gib * _GIB
    phases = {name: getattr(line, f"{name}_seconds") for name in PHASES}
    phases["checkpoint"] = line.checkpoint_seconds
    split = {**phases, "other": max(0.0, line.step_seconds - sum(phases.values()))}
    families = [
        _family("info", "gauge", "The run and its attempt.", [({"run": run, "attempt": str(line.attempt)}, 1)]),
        _family("last_step_timestamp_seconds", "gauge", "Unix time of the last step's end.", _one(line.time)),
        _family("steps_total", "counter", "Optimizer steps of the whole run.", _one(line.step)),
        _family("skipped_steps_total", "counter", "Steps that fp16's overflow has skipped.", _one(skipped)),
        _family("samples_total", "counter", "Samples consumed by the whole run.", _one(line.consumed)),
        _family("loss", "gauge", "Mean training loss, nats.", _one(line.loss)),
        _family("validation_loss", "gauge", "Last held-out loss, nats.", _one(line.validation_loss)),
        _family("learning_rate", "gauge", "Learning rate of the step.", _one(line.learning_rate)),
        _family("gradient_norm", "gauge", "Global gradient norm before clipping.", _one(line.gradient_norm)),
        _family("loss_scale", "gauge", "Factor on the loss in fp16.", _one(line.loss_scale)),
        _family("samples_per_second", "gauge", "Samples over all ranks.", _one(line.samples_per_second)),
        _family("tokens_per_second", "gauge", "Tokens over all ranks.", _one(line.tokens_per_second)),
        _family("mfu_ratio", "gauge", "Model FLOPs utilization.", _one(line.mfu)),
        _family("memory_peak_bytes", "gauge", "Peak of the first rank: its GPU's, or resident.", _one(bytes_)),
        _family(
            "step_seconds",
            "gauge",
            "What the step spent its time on; the checkpoint's part is what saving held training up.",
            [({"phase": name}, seconds) for name, seconds in split.items()],
        ),
    ]
    return "".join(families)


def _one(value: float | None) -> Samples:
    return [({}, value)]


def _family(name: str, kind: str, about: str, samples: Samples) -> str:
    """Empty where there is no value."""
    full = f"trainyard_train_{name}"
    lines = [f"{full}{_labels(labels)} {float(value)!r}\n" for labels, value in samples if value is not None]
    return "".join([f"# HELP {full} {about}\n# TYPE {full} {kind}\n", *lines]) if lines else ""


def _labels(labels: Mapping[str, str]) -> str:
    escapes = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
    told = ",".join(f'{name}="{value.translate(escapes)}"' for name, value in labels.items())
    return f"{{{told}}}" if told else ""
