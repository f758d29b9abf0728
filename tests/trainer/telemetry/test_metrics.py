"""What rank 0 tells: the same figures in the file, on stdout, for TensorBoard and for Prometheus."""

import math
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.metrics import metric
from tests.trainer.conftest import tiny
from trainer.settings import Environment
from trainer.storage import Folder, Storage
from trainer.telemetry import metrics
from trainer.telemetry.metrics import Metrics, in_words, peak_memory_gib, require_finite
from trainer.telemetry.prometheus import TextFile, text_of
from trainyard.models.metrics import MetricLine

CPU = torch.device("cpu")
SPENT = {"data": 0.1, "forward": 0.4, "backward": 1.0, "optimizer": 0.3}


@dataclass
class Model:
    parameters: int = 1000
    flops: float = 3e12


@dataclass
class Progress:
    step: int = 0
    consumed: int = 0
    last_loss: float = 5.0

    def on(self) -> "Progress":
        return Progress(self.step + 1, self.consumed + 12)


def told(environment: Environment, seconds: list[float], results: Storage | None = None, **changes: Any) -> Metrics:
    """Metrics that were told of so many steps."""
    place = results or Folder(environment.results_uri, "RESULTS_URI")
    made = Metrics(tiny(), environment, place, Model(), CPU)
    progress = Progress()
    with made:
        made.begin(None)
        for each in seconds:
            progress = progress.on()
            given: dict[str, Any] = {"validation_loss": None, "learning_rate": 0.01, "gradient_norm": 1.0}
            made.step(progress, **{**given, "seconds": each, "spent": SPENT, "stalled": 0.5, **changes})
    return made


def lines(environment: Environment) -> list[MetricLine]:
    text = (environment.metrics_dir / "metrics.jsonl").read_text()
    return [MetricLine.model_validate_json(line) for line in text.splitlines()]


def test_each_step_is_a_line_of_the_contract(alone: Environment) -> None:
    told(alone, [2.0, 4.0])
    first, second = lines(alone)
    assert (first.step, second.step, second.consumed) == (1, 2, 24)
    assert (first.samples_per_second, first.tokens_per_second) == (6.0, 6.0 * 32)
    assert (first.data_seconds, first.backward_seconds, first.checkpoint_seconds) == (0.1, 1.0, 0.5)
    assert first.mfu is None
    assert first.memory_gib > 0.1  # torch is imported


def test_figures_are_medians_without_the_first_steps(alone: Environment) -> None:
    made = told(alone, [60.0] * 5 + [2.0, 3.0, 2.0, 2.0, 900.0])
    found = made.figures()
    assert found is not None
    assert (found.steps, found.step_seconds) == (5, 2.0)
    assert (found.samples_per_second, found.tokens_per_second) == (6.0, 192.0)
    total = 300 + 909
    assert found.data_share == pytest.approx(1.0 / total)
    assert found.checkpoint_share == pytest.approx(5.0 / total)


def test_utilization_is_of_the_peak_of_all_ranks(alone: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "peak_flops", lambda device, precision: 1e12)
    made = told(replace(alone, world_size=3, local_world_size=3), [24.0])
    found = made.figures()
    assert found is not None
    assert found.mfu == lines(alone)[0].mfu == 12 * 3e12 / 24 / 3e12


def test_tensorboard_has_each_figure(alone: Environment) -> None:
    from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
        EventAccumulator,
    )

    made = told(alone, [2.0, 4.0])
    made.finish()
    read = EventAccumulator(str(Path(alone.results_uri) / "tensorboard"))
    read.Reload()
    assert [event.value for event in read.Scalars("step_seconds")] == [2.0, 4.0]
    assert {"loss", "data_seconds", "memory_gib", "tokens_per_second"} <= set(read.Tags()["scalars"])


@pytest.mark.parametrize(("run", "copied"), [("alone", True), ("20260131-183012-base-4f1a", False)])
def test_lines_are_copied_where_no_agent_ships_them(alone: Environment, run: str, copied: bool) -> None:
    told(replace(alone, run=run), [2.0]).finish()
    assert (Path(alone.results_uri) / "metrics.jsonl").exists() is copied


def test_a_copy_that_fails_is_told_and_ends_nothing(alone: Environment, capsys: pytest.CaptureFixture[str]) -> None:
    class Away(Folder):
        def upload(self, source: Path, key: str, *, threads: bool = True) -> None:
            raise OSError("s3://runs/: unreachable")

    made = told(alone, [2.0], Away(alone.results_uri, "RESULTS_URI"))
    made.saved("s3://runs/c/step-00000001/", publish=True)
    made.finish()
    said = capsys.readouterr().out
    assert "saved s3://runs/c/step-00000001/" in said
    assert said.count("metrics not copied yet: s3://runs/: unreachable") == 2


def test_training_and_its_end_wait_for_no_copy_for_ever(
    alone: Environment, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, asked = threading.Event(), []

    class Silent(Folder):
        def upload(self, source: Path, key: str, *, threads: bool = True) -> None:
            asked.append((key, threads))
            answers.wait(60)

    monkeypatch.setattr(metrics, "PATIENCE_SECONDS", 0.1)
    made = told(alone, [2.0], Silent("s3", "RESULTS_URI"))
    for step in (1, 2):
        made.saved(f"s3://runs/c/step-{step:08d}/", publish=True)
    made.finish()
    ((_, threads),) = asked  # one at a time
    assert not threads  # they would outlast the end
    assert "metrics not copied: s3/ did not take them in 0 s" in capsys.readouterr().out
    answers.set()


def test_the_log_has_one_line_a_step(alone: Environment, capsys: pytest.CaptureFixture[str]) -> None:
    told(alone, [2.0, 4.0], validation_loss=4.5)
    begin, first, second = capsys.readouterr().out.splitlines()
    assert begin.startswith("1,000 parameters, decoder, fp32, 1 x cpu (ddp: pipeline 1, replicas 1")
    assert first.startswith(
        "step 1/20 loss 5.0000 validation 4.5000 rate 1.00e-02 norm 1.000 192 tokens/s 2,000 ms (data 5%)"
    )
    assert second.startswith("step 2/20 ")


def test_a_step_that_fp16_skipped_says_so() -> None:
    line = metric(3, gradient_norm=None, skipped=True, loss_scale=1024.0)
    assert "skipped: fp16 overflowed" in in_words(line, 20)
    assert MetricLine.model_validate_json(line.model_dump_json()) == line


def families(text: str) -> dict[str, Any]:
    from prometheus_client import parser

    return {family.name: family for family in parser.text_string_to_metric_families(text)}


def test_prometheus_own_parser_reads_the_figures(alone: Environment) -> None:
    told(alone, [2.0, 4.0])
    found = families((alone.metrics_dir / "trainer.prom").read_text())
    (steps,) = found["trainyard_train_steps"].samples
    assert (steps.name, steps.value, found["trainyard_train_steps"].type) == (
        "trainyard_train_steps_total",
        2.0,
        "counter",
    )
    split = {sample.labels["phase"]: sample.value for sample in found["trainyard_train_step_seconds"].samples}
    assert split == {**SPENT, "other": pytest.approx(1.7), "checkpoint": 0.5}
    (memory,) = found["trainyard_train_memory_peak_bytes"].samples
    assert memory.value == lines(alone)[-1].memory_gib * 2**30
    assert "trainyard_train_mfu_ratio" not in found  # of a CPU nobody knows it


def test_prometheus_names_end_in_units_and_are_described() -> None:
    text = text_of(metric(3, validation_loss=2.0, mfu=0.5, loss_scale=2.0), 'a"b\\c\nd', 1)
    found = families(text)
    assert found["trainyard_train_info"].samples[0].labels["run"] == 'a"b\\c\nd'
    assert all(family.documentation and family.type in ("gauge", "counter") for family in found.values())
    assert not [name for name in found if name.endswith(("_gib", "_ms", "_percent"))]


def test_prometheus_file_is_never_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = TextFile(tmp_path / "trainer.prom", "r")
    file.write(metric(1))
    before = file_text = (tmp_path / "trainer.prom").read_text()

    def cut(self: Path, text: str) -> int:
        with self.open("w") as stream:
            stream.write(text[:20])
        raise OSError("no space left")

    monkeypatch.setattr(Path, "write_text", cut)
    with pytest.raises(OSError, match="no space"):
        file.write(metric(2))
    assert (tmp_path / "trainer.prom").read_text() == before == file_text


def test_the_last_held_out_loss_stands_until_the_next(tmp_path: Path) -> None:
    file = TextFile(tmp_path / "trainer.prom", "r")
    file.write(metric(1, validation_loss=2.5))
    file.write(metric(2))
    assert "trainyard_train_validation_loss 2.5\n" in (tmp_path / "trainer.prom").read_text()


def test_skipped_steps_are_counted(tmp_path: Path) -> None:
    file = TextFile(tmp_path / "trainer.prom", "r")
    for number, skipped in enumerate([True, False, True], start=1):
        file.write(metric(number, skipped=skipped))
    assert "trainyard_train_skipped_steps_total 2.0\n" in (tmp_path / "trainer.prom").read_text()


@pytest.mark.parametrize(("loss", "norm"), [(math.nan, 1.0), (math.inf, 1.0), (2.0, math.nan), (2.0, math.inf)])
def test_what_is_not_finite_ends_the_job_and_says_what_to_do(loss: float, norm: float) -> None:
    with pytest.raises(
        FloatingPointError, match=r"step 7 at learning rate 0.003: loss .*Lower optimizer.learning_rate"
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
