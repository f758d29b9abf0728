"""Loss scaling of fp16 and its training."""

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


def test_loss_scale_halves_on_overflow_and_doubles_after_growth_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LossScale, "GROWTH_STEPS", 3)
    scale = LossScale(enabled=True)
    scales = []
    for finite in (False, True, True, True, True, False):
        scale.update(finite=finite)
        scales.append(scale.value / 2**16)
    assert scales == [0.5, 0.5, 0.5, 1.0, 1.0, 0.5]


def test_disabled_loss_scale_is_one() -> None:
    scale = LossScale(enabled=False)
    scale.update(finite=False)
    assert (scale.value, scale.state, scale.can_skip_step) == (1.0, {}, False)


def test_fp16_has_the_losses_of_fp32(alone: Environment, tmp_path: Path) -> None:
    train(tiny(steps=10), alone)
    half = replace(alone, metrics_dir=tmp_path / "half", checkpoint_uri=str(tmp_path / "half/checkpoints"))
    train(tiny(steps=10, precision="fp16"), half)
    assert [line["loss"] for line in lines(half)] == pytest.approx([line["loss"] for line in lines(alone)], abs=0.02)
    norms = [[line["gradient_norm"] for line in lines(run)] for run in (alone, half)]
    assert norms[0] == pytest.approx(norms[1], rel=0.1)


def test_overflow_step_changes_no_weights(alone: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    forward, weights = Decoder.forward, []

    def overflowing(self: Decoder, x: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        loss = forward(self, x, targets)
        if not self.training:
            return loss
        weights.append(self.get_parameter("lm_head.weight").detach().clone())
        if len(weights) == 3:  # the second step: the warm-up is the first pass
            loss.register_hook(lambda gradient: gradient * torch.inf)  # type: ignore[no-untyped-call]
        return loss

    monkeypatch.setattr(Decoder, "forward", overflowing)
    train(tiny(steps=3, batch_size=2, precision="fp16"), alone)
    steps = lines(alone)
    assert [line["skipped"] for line in steps] == [False, True, False]
    assert [line["loss_scale"] for line in steps] == [2.0**16, 2.0**16, 2.0**15]
    assert torch.equal(weights[2], weights[3])
    assert not torch.equal(weights[1], weights[2])


def test_infinite_loss_is_not_skipped_as_overflow(alone: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    """A smaller scale would not make the loss finite, and the step has no metrics."""
    forward = Decoder.forward
    monkeypatch.setattr(Decoder, "forward", lambda *args: forward(*args) * torch.inf)
    with pytest.raises(FloatingPointError, match=r"step 1 .*loss inf"):
        train(tiny(steps=3, precision="fp16"), alone)
    assert (alone.metrics_dir / "metrics.jsonl").read_text() == ""
