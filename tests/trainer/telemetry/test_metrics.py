"""Metrics of rank 0 in the file, the log, TensorBoard and Prometheus."""

import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.metrics import metric
from tests.trainer.conftest import tiny
from tests.trainer.telemetry.blocked_storage import BlockedStorage
from trainer.settings import Environment
from trainer.step import StepFlags, StepOutcome
from trainer.storage import LocalStorage, Storage
from trainer.telemetry import metrics
from trainer.telemetry.metrics import Metrics, allocator_figures, format_step, peak_memory_gib, require_finite
from trainer.telemetry.prometheus import PrometheusTextfile
from trainyard.models.metrics import MetricLine

CPU = torch.device("cpu")
PHASE_SECONDS = {"data": 0.1, "forward": 0.4, "backward": 1.0, "optimizer": 0.3}


@dataclass
class Model:
    parameters: int = 1000
    flops: float = 3e12


def record_steps(
    environment: Environment, seconds: list[float], results: Storage | None = None, **changes: Any
) -> Metrics:
    """Return metrics after steps of these durations."""
    storage = results or LocalStorage(environment.results_uri, "RESULTS_URI")
    recorder = Metrics(changes.pop("config", tiny()), environment, storage, Model(), CPU)
    validation_loss, checkpoint_seconds = changes.pop("validation_loss", None), changes.pop("checkpoint_seconds", 0.5)
    failed = changes.pop("failed_checkpoints", 0)
    with recorder:
        recorder.log_start(None)
        for number, step_seconds in enumerate(seconds, start=1):
            outcome = StepOutcome(
                step=number,
                consumed=12 * number,
                flags=StepFlags(**dict.fromkeys((each.name for each in fields(StepFlags)), False)),
                step_seconds=step_seconds,
                phase_seconds=PHASE_SECONDS,
                **{"loss": 5.0, "learning_rate": 0.01, "gradient_norm": 1.0, "loss_scale": None, **changes},
            )
            recorder.record_step(
                outcome,
                validation_loss=validation_loss,
                checkpoint_seconds=checkpoint_seconds,
                failed_checkpoints=failed,
            )
    return recorder


def lines(environment: Environment) -> list[MetricLine]:
    text = (environment.metrics_dir / "metrics.jsonl").read_text()
    return [MetricLine.model_validate_json(line) for line in text.splitlines()]


def test_each_step_is_a_metric_line(alone: Environment) -> None:
    record_steps(alone, [2.0, 4.0])
    first, second = lines(alone)
    assert (first.step, second.step, second.consumed) == (1, 2, 24)
    assert (first.samples_per_second, first.tokens_per_second) == (6.0, 6.0 * 32)
    assert (first.data_seconds, first.backward_seconds, first.checkpoint_seconds) == (0.1, 1.0, 0.5)
    assert first.mfu is None
    assert first.memory_gib > 0.1  # torch is imported


def test_figures_are_medians_without_warmup_steps(alone: Environment) -> None:
    recorder = record_steps(alone, [60.0] * 5 + [2.0, 3.0, 2.0, 2.0, 900.0])
    figures = recorder.figures()
    assert figures is not None
    assert (figures.steps, figures.step_seconds) == (5, 2.0)
    assert (figures.samples_per_second, figures.tokens_per_second) == (6.0, 192.0)
    total = 300 + 909
    assert figures.data_share == pytest.approx(1.0 / total)
    assert figures.checkpoint_share == pytest.approx(5.0 / total)


def test_mfu_is_over_the_peak_of_all_ranks(alone: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "peak_flops", lambda device, precision: 1e12)
    recorder = record_steps(replace(alone, world_size=3, local_world_size=3), [24.0])
    figures = recorder.figures()
    assert figures is not None
    assert figures.mfu == lines(alone)[0].mfu == 12 * 3e12 / 24 / 3e12


def test_float8_has_the_utilization_of_bf16_too(alone: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = {"float8": 2e12, "bf16": 1e12}
    monkeypatch.setattr(metrics, "peak_flops", lambda device, precision: peaks[precision])
    record_steps(alone, [24.0], config=tiny(precision="float8", low_precision={"minimum_features": 16}))
    (line,) = lines(alone)
    assert line.mfu is not None
    assert line.bf16_mfu == 2 * line.mfu


def test_tensorboard_has_each_metric(alone: Environment) -> None:
    from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
        EventAccumulator,
    )

    recorder = record_steps(alone, [2.0, 4.0])
    recorder.finish()
    events = EventAccumulator(str(Path(alone.results_uri) / "tensorboard"))
    events.Reload()
    assert [event.value for event in events.Scalars("step_seconds")] == [2.0, 4.0]
    assert {"loss", "data_seconds", "memory_gib", "tokens_per_second"} <= set(events.Tags()["scalars"])


@pytest.mark.parametrize(("run", "uploaded"), [("standalone", True), ("20260131-183012-base-4f1a", False)])
def test_standalone_run_uploads_its_metrics(alone: Environment, run: str, uploaded: bool) -> None:
    record_steps(replace(alone, run=run), [2.0]).finish()
    assert (Path(alone.results_uri) / "metrics.jsonl").exists() is uploaded


def test_failed_upload_is_logged(alone: Environment, caplog: pytest.LogCaptureFixture) -> None:
    class Unreachable(LocalStorage):
        def upload(self, source: Path, key: str, *, threads: bool = True) -> None:
            raise OSError("s3://runs/: unreachable")

    recorder = record_steps(alone, [2.0], Unreachable(alone.results_uri, "RESULTS_URI"))
    recorder.record_checkpoint("s3://runs/c/step-00000001/", publish=True)
    recorder.finish()
    assert "saved s3://runs/c/step-00000001/" in caplog.text
    assert caplog.text.count("metrics not uploaded yet: s3://runs/: unreachable") == 2


def test_training_and_exit_do_not_wait_for_a_blocked_upload(
    alone: Environment, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = BlockedStorage()
    monkeypatch.setattr(metrics, "UPLOAD_TIMEOUT_SECONDS", 0.1)
    recorder = record_steps(alone, [2.0], storage)
    for step in (1, 2):
        recorder.record_checkpoint(f"s3://runs/c/step-{step:08d}/", publish=True)
    recorder.finish()
    ((_, threads),) = storage.uploads  # one at a time
    assert not threads  # the process would wait for them
    assert "metrics not uploaded: s3/ did not respond within 0 s" in caplog.text
    storage.response.set()


def test_log_has_one_line_per_step(alone: Environment, caplog: pytest.LogCaptureFixture) -> None:
    record_steps(alone, [2.0, 4.0], validation_loss=4.5)
    start, first, second = caplog.messages
    assert start.startswith("1,000 parameters, decoder, fp32, 1 x cpu (ddp: pipeline 1, replicas 1")
    assert first.startswith(
        "step 1/20 loss 5.0000 validation 4.5000 lr 1.00e-02 norm 1.000 192 tokens/s 2,000 ms (data 5%)"
    )
    assert second.startswith("step 2/20 ")


def test_skipped_step_is_logged() -> None:
    line = metric(3, gradient_norm=None, skipped=True, loss_scale=1024.0)
    assert "skipped: fp16 overflow" in format_step(line, 20)
    assert MetricLine.model_validate_json(line.model_dump_json()) == line


def families(text: str) -> dict[str, Any]:
    from prometheus_client import parser

    return {family.name: family for family in parser.text_string_to_metric_families(text)}


def test_prometheus_parser_reads_the_metrics(alone: Environment) -> None:
    record_steps(alone, [2.0, 4.0])
    parsed = families((alone.metrics_dir / "trainer.prom").read_text())
    (steps,) = parsed["trainyard_train_steps"].samples
    assert (steps.name, steps.value, parsed["trainyard_train_steps"].type) == (
        "trainyard_train_steps_total",
        2.0,
        "counter",
    )
    phases = {sample.labels["phase"]: sample.value for sample in parsed["trainyard_train_step_seconds"].samples}
    assert phases == {**PHASE_SECONDS, "other": pytest.approx(1.7), "checkpoint": 0.5}
    (memory,) = parsed["trainyard_train_memory_peak_bytes"].samples
    assert memory.value == lines(alone)[-1].memory_gib * 2**30
    assert "trainyard_train_mfu_ratio" not in parsed  # unknown on a CPU


def test_load_of_experts_is_a_metric(alone: Environment) -> None:
    record_steps(alone, [2.0], expert_load_imbalance=1.5)
    assert lines(alone)[0].expert_load_imbalance == 1.5
    (load,) = families((alone.metrics_dir / "trainer.prom").read_text())["trainyard_train_expert_load_ratio"].samples
    assert load.value == 1.5


def test_prometheus_names_end_in_units_and_are_described(tmp_path: Path) -> None:
    file = PrometheusTextfile(tmp_path / "trainer.prom", 'a"b\\c\nd')
    file.write(metric(3, validation_loss=2.0, mfu=0.5, loss_scale=2.0))
    parsed = families((tmp_path / "trainer.prom").read_text())
    assert parsed["trainyard_train_info"].samples[0].labels["run"] == 'a"b\\c\nd'
    assert all(family.documentation and family.type in ("gauge", "counter") for family in parsed.values())
    assert not [name for name in parsed if name.endswith(("_gib", "_ms", "_percent"))]


def test_prometheus_file_is_replaced_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = PrometheusTextfile(tmp_path / "trainer.prom", "r")
    file.write(metric(1))
    before = (tmp_path / "trainer.prom").read_text()

    def fail(registry: object, escaping: str) -> bytes:
        raise OSError("no space left")

    monkeypatch.setattr("prometheus_client.exposition.generate_latest", fail)
    with pytest.raises(OSError, match="no space"):
        file.write(metric(2))
    assert (tmp_path / "trainer.prom").read_text() == before
    assert [path.name for path in tmp_path.iterdir()] == ["trainer.prom"]


def test_last_validation_loss_is_exported_until_the_next(tmp_path: Path) -> None:
    file = PrometheusTextfile(tmp_path / "trainer.prom", "r")
    file.write(metric(1, validation_loss=2.5))
    file.write(metric(2))
    assert "trainyard_train_validation_loss 2.5\n" in (tmp_path / "trainer.prom").read_text()


def test_skipped_steps_are_counted(tmp_path: Path) -> None:
    file = PrometheusTextfile(tmp_path / "trainer.prom", "r")
    for number, skipped in enumerate([True, False, True], start=1):
        file.write(metric(number, skipped=skipped))
    assert "trainyard_train_skipped_steps_total 2.0\n" in (tmp_path / "trainer.prom").read_text()


@pytest.mark.parametrize(("loss", "norm"), [(math.nan, 1.0), (math.inf, 1.0), (2.0, math.nan), (2.0, math.inf)])
def test_infinite_loss_is_an_error_with_advice(loss: float, norm: float) -> None:
    with pytest.raises(
        FloatingPointError, match=r"step 7 at learning rate 0.003: loss .*Decrease optimizer.learning_rate"
    ):
        require_finite(7, loss, norm, 3e-3)
    require_finite(7, 2.0, 1.0, 3e-3)


def test_memory_is_the_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    before = peak_memory_gib(CPU)
    block = torch.ones(2**26)  # 256 MiB, touched
    del block
    assert peak_memory_gib(CPU) >= before
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 3 * 2**30)
    assert peak_memory_gib(torch.device("cuda", 0)) == 3.0


def test_error_of_the_file_system_ends_the_job(alone: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread writes; the next step or the end raises its error."""

    def fail(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(PrometheusTextfile, "write", fail)
    recorder = record_steps(alone, [2.0])
    with pytest.raises(OSError, match="No space left"):
        recorder.finish()


def test_reserved_memory_and_retries_of_a_gpu_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: {"num_alloc_retries": 3})
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 5 * 2**30)
    assert allocator_figures(torch.device("cuda")) == {"reserved_gib": 5.0, "allocation_retries": 3}
    assert allocator_figures(CPU) == {}
