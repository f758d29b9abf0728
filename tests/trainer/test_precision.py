"""What fp16 needs, and what all types share."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.conftest import tiny
from trainer.loop import train
from trainer.models.decoder import Decoder
from trainer.precision import LossScale
from trainer.settings import Environment


def lines(environment: Environment) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (environment.metrics_dir / "metrics.jsonl").read_text().splitlines()]


def test_the_scale_halves_at_once_and_doubles_after_many_good_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LossScale, "GROWTH_STEPS", 3)
    scale = LossScale(enabled=True)
    seen = []
    for finite in (False, True, True, True, True, False):
        scale.update(finite=finite)
        seen.append(scale.value / 2**16)
    assert seen == [0.5, 0.5, 0.5, 1.0, 1.0, 0.5]


def test_without_it_nothing_is_scaled() -> None:
    scale = LossScale(enabled=False)
    scale.update(finite=False)
    assert (scale.value, scale.state, scale.may_skip) == (1.0, {}, False)


def test_fp16_learns_as_fp32_does(alone: Environment, tmp_path: Path) -> None:
    train(tiny(steps=10), alone)
    half = replace(alone, metrics_dir=tmp_path / "half", checkpoint_uri=str(tmp_path / "half/checkpoints"))
    train(tiny(steps=10, precision="fp16"), half)
    assert [line["loss"] for line in lines(half)] == pytest.approx([line["loss"] for line in lines(alone)], abs=0.02)
    norms = [[line["gradient_norm"] for line in lines(run)] for run in (alone, half)]
    assert norms[0] == pytest.approx(norms[1], rel=0.1)


def test_a_step_that_overflows_changes_no_weight(alone: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    forward, seen = Decoder.forward, []

    def overflowing(self: Decoder, x: torch.Tensor, successors: torch.Tensor | None = None) -> torch.Tensor:
        loss = forward(self, x, successors)
        if not self.training:
            return loss
        seen.append(self.head.weight.detach().clone())
        if len(seen) == 3:  # the second step's: the warm-up is one, too
            loss.register_hook(lambda gradient: gradient * torch.inf)  # type: ignore[no-untyped-call]
        return loss

    monkeypatch.setattr(Decoder, "forward", overflowing)
    train(tiny(steps=3, batch_size=2, precision="fp16"), alone)
    found = lines(alone)
    assert [line["skipped"] for line in found] == [False, True, False]
    assert [line["loss_scale"] for line in found] == [2.0**16, 2.0**16, 2.0**15]
    assert torch.equal(seen[2], seen[3])
    assert not torch.equal(seen[1], seen[2])


def test_a_loss_that_is_not_finite_is_no_fault_of_the_scale(
    alone: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be none in the next tries either, and no figure of a step."""
    forward = Decoder.forward
    monkeypatch.setattr(Decoder, "forward", lambda *given: forward(*given) * torch.inf)
    with pytest.raises(FloatingPointError, match=r"step 1 .*loss inf"):
        train(tiny(steps=3, precision="fp16"), alone)
    assert (alone.metrics_dir / "metrics.jsonl").read_text() == ""
