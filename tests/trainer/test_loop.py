"""The loop, run in this process on one rank."""

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.trainer.conftest import tiny
from trainer.checkpoints.reader import load_whole
from trainer.evaluation import held_out_loss
from trainer.loop import train
from trainer.models.decoder import Decoder
from trainer.settings import Environment
from trainer.telemetry.metrics import Metrics
from trainyard.base import InputError
from trainyard.models.dataset import INDEX
from trainyard.models.metrics import Results


def losses(environment: Environment) -> list[float]:
    lines = (environment.metrics_dir / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


@pytest.fixture(autouse=True)
def process_as_before() -> Any:
    """What a job sets for all of its process: threads, and determinism."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)
    assert not torch.distributed.is_initialized()  # whatever a job ended by, its group has ended with it


def test_accumulation_changes_nothing(alone: Environment, tmp_path: Path) -> None:
    train(tiny(micro_batch_size=12, steps=6), alone)
    other = replace(alone, metrics_dir=tmp_path / "other", checkpoint_uri=str(tmp_path / "other"))
    train(tiny(micro_batch_size=1, steps=6), other)
    assert losses(alone) == pytest.approx(losses(other), abs=1e-5)


def test_bf16_trains_on_fp32_weights(alone: Environment) -> None:
    train(tiny(precision="bf16"), alone)
    found = losses(alone)
    assert found[-1] < 0.9 * found[0]
    kept = load_whole(f"{alone.checkpoint_uri}/step-00000020/")
    assert {value.dtype for name, value in kept.items() if name.startswith("model.")} == {torch.float32}


def test_another_runs_checkpoint_is_continued(alone: Environment, tmp_path: Path) -> None:
    train(tiny(steps=4), alone)
    heir = replace(
        alone,
        checkpoint_uri=str(tmp_path / "heir/checkpoints"),
        results_uri=str(tmp_path / "heir/results"),
        metrics_dir=tmp_path / "heir/metrics",
        resume_uri=alone.checkpoint_uri,
    )
    train(tiny(steps=6), heir)
    results = json.loads((tmp_path / "heir/results/results.json").read_text())
    assert results["first_loss"] == losses(alone)[0]
    assert results["checkpoints"] == [f"{heir.checkpoint_uri}/step-00000006/"]
    assert len(losses(heir)) == 2


def test_a_finished_run_can_not_be_continued_to_the_same_step(alone: Environment, tmp_path: Path) -> None:
    train(tiny(steps=4), alone)
    heir = replace(alone, checkpoint_uri=str(tmp_path / "heir"), resume_uri=alone.checkpoint_uri)
    with pytest.raises(InputError, match="has done 4 steps, and this job ends after 4"):
        train(tiny(steps=4), heir)


def test_an_own_folder_is_not_one_whose_name_begins_alike(alone: Environment) -> None:
    old = replace(alone, checkpoint_uri=f"{alone.checkpoint_uri}-old")
    train(tiny(steps=4), old)
    with pytest.raises(InputError, match="has done 4 steps, and this job ends after 4"):
        train(tiny(steps=4), replace(alone, resume_uri=old.checkpoint_uri))


def test_a_run_goes_on_with_its_own_samples_or_not_at_all(alone: Environment) -> None:
    train(tiny(steps=4), alone)
    changed = {"seed": 5, "batch_size": 10, "data": {"streams": 8, "shuffle_block": 100}}
    with pytest.raises(InputError) as told:
        train(tiny(steps=6, **changed), alone)
    assert [problem.key for problem in told.value.problems] == [
        *("config.seed", "config.data.streams", "config.data.shuffle_block", "config.batch_size")
    ]
    assert "config.seed = 5: orders the samples anew: " in str(told.value)
    assert "step-00000004/ was made with 1234. Give what it was made with" in str(told.value)
    assert "no batch of so many begins where " in str(told.value)
    train(tiny(steps=6, batch_size=24), alone)  # 48 samples are two batches


def test_another_dataset_ends_a_run_of_its_own(alone: Environment, dataset: Path, tmp_path: Path) -> None:
    """Content counts, not the place."""
    train(tiny(steps=2), alone)
    other = shutil.copytree(dataset, tmp_path / "other")
    train(tiny(steps=3), replace(alone, data_uri=str(other)))
    index = json.loads((other / INDEX).read_text())
    index["train"].reverse()
    (other / INDEX).write_text(json.dumps(index))
    with pytest.raises(InputError, match=r"DATA_URI = 'sha256:.*': orders the samples anew"):
        train(tiny(steps=4), replace(alone, data_uri=str(other)))


def test_another_runs_weights_may_learn_from_other_samples(
    alone: Environment, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their count begins anew, and is the run's own from then on."""
    train(tiny(steps=4), alone)
    heir = replace(alone, checkpoint_uri=str(tmp_path / "heir"), resume_uri=alone.checkpoint_uri)
    train(tiny(steps=6, seed=5), heir)
    told = "was made with another config.seed: this run counts its samples from 0"
    assert capsys.readouterr().out.count(told) == 1
    train(tiny(steps=7, seed=5), heir)
    assert told not in capsys.readouterr().out
    lines = [json.loads(line) for line in (alone.metrics_dir / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["consumed"]) for line in lines[4:]] == [(5, 12), (6, 24), (7, 36)]


def test_nothing_to_continue_is_an_error(alone: Environment, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"RESUME_URI = .* holds no complete checkpoint"):
        train(tiny(), replace(alone, resume_uri=str(tmp_path / "empty")))


def test_a_run_of_its_own_does_not_look_at_another(alone: Environment, tmp_path: Path) -> None:
    """Its own checkpoint comes first, also where RESUME_URI is still in the environment."""
    train(tiny(steps=4), alone)
    train(tiny(steps=6), replace(alone, resume_uri=str(tmp_path / "empty")))
    assert len(losses(alone)) == 6


def test_a_loss_that_is_not_finite_stops_the_job(alone: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = Decoder.forward

    def diverging(self: Decoder, tokens: torch.Tensor, successors: torch.Tensor) -> torch.Tensor:
        return forward(self, tokens, successors) * (float("nan") if len(losses(alone)) == 2 else 1.0)

    alone.metrics_dir.mkdir()
    (alone.metrics_dir / "metrics.jsonl").touch()
    monkeypatch.setattr(Decoder, "forward", diverging)
    with pytest.raises(FloatingPointError, match=r"step 3 at learning rate .*: loss nan, .* training has diverged"):
        train(tiny(), alone)


def test_a_bucket_that_is_not_there_is_told_before_the_group(alone: Environment, s3: Any) -> None:
    nowhere = "s3://nowhere/x/"
    for name, environment in {
        "DATA_URI": replace(alone, data_uri=nowhere),
        "CHECKPOINT_URI": replace(alone, checkpoint_uri=nowhere),
        "RESULTS_URI": replace(alone, results_uri=nowhere),
    }.items():
        with pytest.raises(InputError, match=f"{name} = .*there is no such bucket"):
            train(tiny(), environment)
    assert not torch.distributed.is_initialized()


def test_a_finished_run_leaves_its_weights(alone: Environment) -> None:
    train(tiny(steps=10, checkpoint={"every": 10, "export": ["safetensors", "int8"]}), alone)
    results = Results.model_validate_json((Path(alone.results_uri) / "results.json").read_text())
    full, small = results.exports["safetensors"], results.exports["int8"]
    assert full.validation_loss == pytest.approx(results.validation_loss, abs=1e-6)
    assert full.bytes == pytest.approx(4 * results.parameters, rel=0.05)
    assert small.bytes < 0.7 * full.bytes
    assert small.validation_loss == pytest.approx(full.validation_loss, abs=0.05)
    assert small.validation_loss != full.validation_loss
    kept = load_whole(f"{alone.checkpoint_uri}/step-00000010/")
    for name, tensor in load_file(Path(alone.results_uri) / "export/model.safetensors").items():
        assert torch.equal(tensor, kept[f"model.{name}"]), name


def test_eight_bits_that_fail_are_told_and_the_run_ends_well(
    alone: Environment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def too_large(*given: Any, **more: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nmore")

    monkeypatch.setattr("trainer.export.finished.export_int8", too_large)
    train(tiny(steps=2, checkpoint={"every": 2, "export": ["safetensors", "int8"]}), alone)
    results = Results.model_validate_json((Path(alone.results_uri) / "results.json").read_text())
    assert list(results.exports) == ["safetensors"]
    assert results.exports["safetensors"].validation_loss == results.validation_loss
    said = capsys.readouterr().out
    assert (
        "warning: not exported in 8 bits: OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.\n" in said
    )
    assert "done: loss" in said


def test_results_are_there_before_the_export(alone: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*given: Any, **more: Any) -> Any:
        raise OSError("s3://runs/: unreachable")

    monkeypatch.setattr("trainer.export.finished.export_model", away)
    with pytest.raises(OSError, match="unreachable"):
        train(tiny(steps=2, checkpoint={"every": 2, "export": ["safetensors"]}), alone)
    assert Results.model_validate_json((Path(alone.results_uri) / "results.json").read_text()).steps == 2


def test_a_step_is_from_step_to_step_without_held_out_losses(
    alone: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is told of the step before takes its time, too."""
    tell, evaluate = Metrics.step, held_out_loss

    def slowly(*given: Any, **more: Any) -> Any:
        time.sleep(0.1)
        return tell(*given, **more)

    def slower(*given: Any, **more: Any) -> Any:
        time.sleep(1)
        return evaluate(*given, **more)

    monkeypatch.setattr(Metrics, "step", slowly)
    monkeypatch.setattr("trainer.loop.held_out_loss", slower)
    train(tiny(steps=3, evaluation={"every": 2}), alone)
    lines = [json.loads(line) for line in (alone.metrics_dir / "metrics.jsonl").read_text().splitlines()]
    assert all(0.1 < line["step_seconds"] < 1 for line in lines[1:])
