"""The loop, run in this process on one rank."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from contract.base import InputError
from tests.trainer.conftest import tiny
from trainer import loop
from trainer.checkpoint import load_whole
from trainer.loop import train
from trainer.model import Transformer
from trainer.settings import Environment


def losses(environment: Environment) -> list[float]:
    lines = (environment.metrics_dir / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


@pytest.fixture(autouse=True)
def no_group_left() -> Any:
    """A job that ends by an error leaves its process group to the end of its process: here to the end of its test."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


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


def test_nothing_to_continue_is_an_error(alone: Environment, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"RESUME_URI = .* holds no complete checkpoint"):
        train(tiny(), replace(alone, resume_uri=str(tmp_path / "empty")))


def test_a_run_of_its_own_does_not_look_at_another(alone: Environment, tmp_path: Path) -> None:
    """Its own checkpoint comes first, also where RESUME_URI is still in the environment."""
    train(tiny(steps=4), alone)
    train(tiny(steps=6), replace(alone, resume_uri=str(tmp_path / "empty")))
    assert len(losses(alone)) == 6


def test_a_loss_that_is_not_finite_stops_the_job(alone: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    forward = Transformer.forward

    def diverging(self: Transformer, tokens: torch.Tensor, successors: torch.Tensor) -> torch.Tensor:
        return forward(self, tokens, successors) * (float("nan") if len(losses(alone)) == 2 else 1.0)

    alone.metrics_dir.mkdir()
    (alone.metrics_dir / "metrics.jsonl").touch()
    monkeypatch.setattr(Transformer, "forward", diverging)
    with pytest.raises(FloatingPointError, match=r"step 3: loss nan, .* training has diverged"):
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


def test_a_copy_of_events_that_fails_does_not_stop_the_job(capsys: pytest.CaptureFixture[str]) -> None:
    class Away:
        def publish(self) -> None:
            raise OSError("s3://runs/: unreachable")

    loop.publish(Away())  # type: ignore[arg-type]
    assert "not copied yet: s3://runs/: unreachable" in capsys.readouterr().out
