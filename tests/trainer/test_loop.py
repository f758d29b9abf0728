"""The training loop on one rank in this process."""

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.problems import rejects
from tests.trainer.conftest import tiny
from tests.trainer.models.library_models import save_model
from trainer.checkpoints.reader import read_state_dict
from trainer.evaluation import compute_validation_loss
from trainer.failures.watchdog import Watchdog
from trainer.loop import train
from trainer.models.decoder import Decoder
from trainer.settings import Environment, resolve_model
from trainer.telemetry.metrics import Metrics
from trainer.telemetry.profiling import Profiler
from trainer.telemetry.timing import StepTimer
from trainyard.errors import InputError
from trainyard.models.dataset import INDEX
from trainyard.models.metrics import Results
from trainyard.models.rank_progress import RankProgress, progress_file


def losses(environment: Environment) -> list[float]:
    lines = (environment.metrics_dir / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


@pytest.fixture(autouse=True)
def restored_process_state() -> Any:
    """Restore the number of threads and determinism, which a job sets for the process."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)
    assert not torch.distributed.is_initialized()  # also after an exception


def test_gradient_accumulation_does_not_change_losses(alone: Environment, tmp_path: Path) -> None:
    train(tiny(micro_batch_size=12, steps=6), alone)
    other = replace(alone, metrics_dir=tmp_path / "other", checkpoint_uri=str(tmp_path / "other"))
    train(tiny(micro_batch_size=1, steps=6), other)
    assert losses(alone) == pytest.approx(losses(other), abs=1e-5)


def test_bf16_trains_on_fp32_weights(alone: Environment) -> None:
    train(tiny(precision="bf16"), alone)
    values = losses(alone)
    assert values[-1] < 0.9 * values[0]
    saved = read_state_dict(f"{alone.checkpoint_uri}/step-00000020/")
    assert {value.dtype for name, value in saved.items() if name.startswith("model.")} == {torch.float32}


def test_resume_from_another_run(alone: Environment, tmp_path: Path) -> None:
    train(tiny(steps=4), alone)
    resumed = replace(
        alone,
        checkpoint_uri=str(tmp_path / "resumed/checkpoints"),
        results_uri=str(tmp_path / "resumed/results"),
        metrics_dir=tmp_path / "resumed/metrics",
        resume_uri=alone.checkpoint_uri,
    )
    train(tiny(steps=6), resumed)
    results = json.loads((tmp_path / "resumed/results/results.json").read_text())
    assert results["first_loss"] == losses(alone)[0]
    assert results["checkpoints"] == [f"{resumed.checkpoint_uri}/step-00000006/"]
    assert len(losses(resumed)) == 2


def test_resume_from_a_run_with_all_steps_is_rejected(alone: Environment, tmp_path: Path) -> None:
    train(tiny(steps=4), alone)
    resumed = replace(alone, checkpoint_uri=str(tmp_path / "resumed"), resume_uri=alone.checkpoint_uri)
    with rejects("no_remaining_steps", "4 steps"):
        train(tiny(steps=4), resumed)


def test_run_with_the_same_name_prefix_is_another_run(alone: Environment) -> None:
    old = replace(alone, checkpoint_uri=f"{alone.checkpoint_uri}-old")
    train(tiny(steps=4), old)
    with rejects("no_remaining_steps", "4 steps"):
        train(tiny(steps=4), replace(alone, resume_uri=old.checkpoint_uri))


def test_resume_with_another_sample_order_is_rejected(alone: Environment) -> None:
    train(tiny(steps=4), alone)
    changed = {"seed": 5, "batch_size": 10, "data": {"streams": 8, "shuffle_block_samples": 100}}
    with pytest.raises(InputError) as caught:
        train(tiny(steps=6, **changed), alone)
    assert [problem.key for problem in caught.value.problems] == [
        *("config.seed", "config.data.streams", "config.data.shuffle_block_samples", "config.batch_size")
    ]
    codes = {problem.key: problem.code for problem in caught.value.problems}
    assert codes["config.seed"] == "sample_order_changed"
    assert codes["config.batch_size"] == "batch_size_not_a_divisor"
    assert "step-00000004/ has 1234" in str(caught.value)
    train(tiny(steps=6, batch_size=24), alone)  # 48 samples are two batches


def test_resume_with_another_dataset_is_rejected(alone: Environment, dataset: Path, tmp_path: Path) -> None:
    """Datasets are compared by content, not by location."""
    train(tiny(steps=2), alone)
    other = shutil.copytree(dataset, tmp_path / "other")
    train(tiny(steps=3), replace(alone, data_uri=str(other)))
    index = json.loads((other / INDEX).read_text())
    index["train"].reverse()
    (other / INDEX).write_text(json.dumps(index))
    with rejects("sample_order_changed", "DATA_URI"):
        train(tiny(steps=4), replace(alone, data_uri=str(other)))


def test_resume_from_another_run_with_another_sample_order(
    alone: Environment, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The number of consumed samples restarts at 0."""
    train(tiny(steps=4), alone)
    resumed = replace(alone, checkpoint_uri=str(tmp_path / "resumed"), resume_uri=alone.checkpoint_uri)
    train(tiny(steps=6, seed=5), resumed)
    message = "was made with another config.seed: this run counts its samples from 0"
    assert caplog.text.count(message) == 1
    caplog.clear()
    train(tiny(steps=7, seed=5), resumed)
    assert message not in caplog.text
    lines = [json.loads(line) for line in (alone.metrics_dir / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["consumed"]) for line in lines[4:]] == [(5, 12), (6, 24), (7, 36)]


def test_resume_without_a_checkpoint_is_rejected(alone: Environment, tmp_path: Path) -> None:
    with rejects("checkpoint_missing", "RESUME_URI"):
        train(tiny(), replace(alone, resume_uri=str(tmp_path / "empty")))


def test_checkpoint_of_this_run_has_priority_over_resume_uri(alone: Environment, tmp_path: Path) -> None:
    """Also if RESUME_URI is set."""
    train(tiny(steps=4), alone)
    train(tiny(steps=6), replace(alone, resume_uri=str(tmp_path / "empty")))
    assert len(losses(alone)) == 6


def test_infinite_loss_stops_the_job(alone: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = Decoder.forward

    def diverging(self: Decoder, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return forward(self, tokens, targets) * (float("nan") if len(losses(alone)) == 2 else 1.0)

    alone.metrics_dir.mkdir()
    (alone.metrics_dir / "metrics.jsonl").touch()
    monkeypatch.setattr(Decoder, "forward", diverging)
    with pytest.raises(FloatingPointError, match=r"step 3 at learning rate .*: loss nan, .* training has diverged"):
        train(tiny(), alone)


def test_missing_bucket_is_reported_before_the_process_group(alone: Environment, s3: Any) -> None:
    nowhere = "s3://nowhere/x/"
    for name, environment in {
        "DATA_URI": replace(alone, data_uri=nowhere),
        "CHECKPOINT_URI": replace(alone, checkpoint_uri=nowhere),
        "RESULTS_URI": replace(alone, results_uri=nowhere),
    }.items():
        with rejects("bucket_missing", name):
            train(tiny(), environment)
    assert not torch.distributed.is_initialized()


def test_finished_run_exports_its_weights(alone: Environment) -> None:
    train(tiny(steps=10, checkpoint={"interval_steps": 10, "export": ["safetensors", "int8"]}), alone)
    results = Results.model_validate_json((Path(alone.results_uri) / "results.json").read_text())
    full, small = results.exports["safetensors"], results.exports["int8"]
    assert full.validation_loss == pytest.approx(results.validation_loss, abs=1e-6)
    assert full.bytes == pytest.approx(4 * results.parameters, rel=0.05)
    assert small.bytes < 0.7 * full.bytes
    assert small.validation_loss == pytest.approx(full.validation_loss, abs=0.05)
    assert small.validation_loss != full.validation_loss
    saved = read_state_dict(f"{alone.checkpoint_uri}/step-00000010/")
    for name, tensor in load_file(Path(alone.results_uri) / "export/model.safetensors").items():
        saved_name = name if name == "lm_head.weight" else name.removeprefix("model.")
        assert torch.equal(tensor, saved[f"model.{saved_name}"]), name


def test_resumed_run_does_not_read_the_pretrained_weights(alone: Environment, tmp_path: Path) -> None:
    save_model(tmp_path / "model", "llama")
    model = {"path": str(tmp_path / "model"), "weights": True, "sequence_length": 32}
    train(resolve_model(tiny(model=model, steps=2)), alone)
    (tmp_path / "model/model.safetensors").unlink()
    train(resolve_model(tiny(model=model, steps=3)), alone)
    assert len(losses(alone)) == 3


def test_failed_int8_export_is_logged_and_the_run_succeeds(
    alone: Environment, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def too_large(*args: Any, **kwargs: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nmore")

    monkeypatch.setattr("trainer.export.final_export.export_int8", too_large)
    train(tiny(steps=2, checkpoint={"interval_steps": 2, "export": ["safetensors", "int8"]}), alone)
    results = Results.model_validate_json((Path(alone.results_uri) / "results.json").read_text())
    assert list(results.exports) == ["safetensors"]
    assert results.exports["safetensors"].validation_loss == results.validation_loss
    message = "int8 weights not exported: OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.\n"
    assert message in caplog.text
    assert "done: loss" in caplog.text


def test_results_are_written_before_the_export(alone: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*args: Any, **kwargs: Any) -> Any:
        raise OSError("s3://runs/: unreachable")

    monkeypatch.setattr("trainer.export.final_export.export_model", unreachable)
    with pytest.raises(OSError, match="unreachable"):
        train(tiny(steps=2, checkpoint={"interval_steps": 2, "export": ["safetensors"]}), alone)
    assert Results.model_validate_json((Path(alone.results_uri) / "results.json").read_text()).steps == 2


def test_step_seconds_include_metrics_and_exclude_validation(
    alone: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing the metrics of the previous step counts."""
    record_step, evaluate = Metrics.record_step, compute_validation_loss

    def slow_record_step(*args: Any, **kwargs: Any) -> Any:
        time.sleep(0.1)
        return record_step(*args, **kwargs)

    def slow_evaluate(*args: Any, **kwargs: Any) -> Any:
        time.sleep(1)
        return evaluate(*args, **kwargs)

    monkeypatch.setattr(Metrics, "record_step", slow_record_step)
    monkeypatch.setattr("trainer.loop.compute_validation_loss", slow_evaluate)
    train(tiny(steps=3, evaluation={"interval_steps": 2}), alone)
    lines = [json.loads(line) for line in (alone.metrics_dir / "metrics.jsonl").read_text().splitlines()]
    assert all(0.1 < line["step_seconds"] < 1 for line in lines[1:])


def test_trace_is_recorded_and_saved_outside_of_the_measured_steps(
    alone: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def record_calls(owner: type, name: str) -> None:
        function = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(f"{owner.__name__}.{name}")
            return function(*args, **kwargs)

        monkeypatch.setattr(owner, name, call)

    for owner, name in ((StepTimer, "start"), (StepTimer, "finish"), (Profiler, "complete_step")):
        record_calls(owner, name)
    train(tiny(steps=4, profile={"first_step": 2, "steps": 2}), alone)
    step = ["StepTimer.finish", "Profiler.complete_step", "StepTimer.start"]
    assert calls[calls.index("StepTimer.finish") :] == step * 4
    assert [file.name[:13] for file in (Path(alone.results_uri) / "profiles").iterdir()] == ["step-00000002"]


def test_each_phase_has_its_limit(alone: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    """The watchdog regards a slow storage or a compilation as a hang only after a longer time than a step."""
    reported: list[tuple[str, float]] = []
    report_phase = Watchdog.report_phase

    def record(self: Watchdog, step: int, phase: str, timeout_seconds: float) -> None:
        reported.append((phase, timeout_seconds))
        report_phase(self, step, phase, timeout_seconds)

    monkeypatch.setattr(Watchdog, "report_phase", record)
    limits = {"setup": 101, "first_step": 102, "step": 103, "data": 104, "evaluation": 105, "checkpoint": 106}
    train(tiny(steps=2, timeouts={f"{phase}_seconds": seconds for phase, seconds in limits.items()}), alone)
    phases = [(phase, seconds) for phase, seconds in reported if phase != "export"]
    assert phases[0] == ("setup", 101)
    assert set(phases) == {
        *(("setup", 101), ("training", 102), ("training", 103)),
        *(("data", 104), ("evaluation", 105), ("checkpoint", 106)),
    }
    assert phases.index(("training", 103)) > phases.index(("data", 104))


def test_each_rank_writes_a_progress_file(alone: Environment) -> None:
    train(tiny(steps=1), alone)
    progress = RankProgress.model_validate_json(progress_file(alone.metrics_dir, 0).read_text())
    assert (progress.rank, progress.step) == (0, 1)
    assert progress.busy_seconds is not None
    assert 0 < progress.busy_seconds <= progress.step_seconds


def test_sharded_run_reports_no_busy_seconds(alone: Environment) -> None:
    """FSDP waits for other ranks in the middle of both passes."""
    train(tiny(steps=1, parallel={"data": "fsdp"}), alone)
    progress = RankProgress.model_validate_json(progress_file(alone.metrics_dir, 0).read_text())
    assert progress.busy_seconds is None
