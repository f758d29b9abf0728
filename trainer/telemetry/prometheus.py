"""A run's latest metrics in Prometheus' text format, for the textfile collector of the node exporter.

Names follow Prometheus' conventions: base units, in the name; `_total` for counters. Source:
prometheus.io/docs/practices/naming and docs/instrumenting/exposition_formats.
"""

from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, Metric, write_to_textfile
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from trainer.telemetry.timing import PHASES
from trainyard.models.metrics import MetricLine

_GIB = 2**30
_PREFIX = "trainyard_train"


class PrometheusTextfile:
    """Writes `trainer.prom` atomically, with the metrics of one step."""

    def __init__(self, path: Path, run: str) -> None:
        self._path, self._run = path, run
        self._line: MetricLine | None = None
        self._skipped_steps = 0  # of this attempt
        self._validation_loss: float | None = None  # the last value, exported until the next validation
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def write(self, line: MetricLine) -> None:
        """Replace the file by the metrics of a step."""
        self._line = line
        self._skipped_steps += line.skipped
        if line.validation_loss is not None:
            self._validation_loss = line.validation_loss
        write_to_textfile(str(self._path), self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families of the last step, for prometheus_client. A metric without a value is omitted."""
        line = self._line
        if line is None:
            return
        yield self._info(line)
        yield self._step_seconds(line)
        counters = (
            ("steps", "Optimizer steps of the whole run.", line.step),
            ("skipped_steps", "Steps that were skipped because of an fp16 overflow.", self._skipped_steps),
            ("samples", "Samples consumed by the whole run.", line.consumed),
        )
        for name, description, count in counters:
            yield CounterMetricFamily(f"{_PREFIX}_{name}", description, value=count)
        gauges = (
            ("last_step_timestamp_seconds", "Unix time of the end of the last step.", line.time),
            ("loss", "Mean training loss, nats.", line.loss),
            ("validation_loss", "Last validation loss, nats.", self._validation_loss),
            ("learning_rate", "Learning rate of the step.", line.learning_rate),
            ("gradient_norm", "Global gradient norm before clipping.", line.gradient_norm),
            ("loss_scale", "Loss scale of fp16.", line.loss_scale),
            (
                "expert_load_ratio",
                "Largest share of the tokens of an expert over the mean share.",
                line.expert_load_imbalance,
            ),
            ("samples_per_second", "Samples per second of all ranks.", line.samples_per_second),
            ("tokens_per_second", "Tokens per second of all ranks.", line.tokens_per_second),
            ("mfu_ratio", "Model FLOPs utilization.", line.mfu),
            ("memory_peak_bytes", "Peak memory of rank 0: of its GPU, or resident.", line.memory_gib * _GIB),
        )
        for name, description, value in gauges:
            if value is not None:
                yield GaugeMetricFamily(f"{_PREFIX}_{name}", description, value=value)

    def _info(self, line: MetricLine) -> Metric:
        family = GaugeMetricFamily(f"{_PREFIX}_info", "The run and its attempt.", labels=["run", "attempt"])
        family.add_metric([self._run, str(line.attempt)], 1)
        return family

    def _step_seconds(self, line: MetricLine) -> Metric:
        seconds = {phase: getattr(line, f"{phase}_seconds") for phase in PHASES}
        seconds["checkpoint"] = line.checkpoint_seconds
        seconds["other"] = max(0.0, line.step_seconds - sum(seconds.values()))
        description = "Duration of the step by phase; checkpoint is the time that training waited for a save."
        family = GaugeMetricFamily(f"{_PREFIX}_step_seconds", description, labels=["phase"])
        for phase, value in seconds.items():
            family.add_metric([phase], value)
        return family
