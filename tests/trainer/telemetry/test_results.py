"""What results.json says beside what the loop gives it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.trainer.conftest import tiny
from trainer.checkpoints import Progress
from trainer.settings import Environment
from trainer.telemetry import results
from trainer.telemetry.results import code_sha256, results_of


@pytest.mark.parametrize(("model", "tokens"), [({"sequence_length": 32}, 10 * 32), ({"kind": "images"}, None)])
def test_tokens_are_samples_by_their_length_and_images_have_none(
    alone: Environment, model: dict[str, object], tokens: int | None
) -> None:
    found = results_of(
        tiny(model=model),
        replace(alone, world_size=2),
        Progress(step=5, consumed=10, first_loss=5.0, last_loss=4.0),
        validation_loss=4.5,
        seconds=1.0,
        figures=None,
        parameters=7,
        checkpoints=["/c/step-00000005/"],
    )
    assert (found.samples, found.tokens, found.world_size) == (10, tokens, 2)
    assert found.versions["torch"] == torch.__version__.split("+")[0]


def test_the_hash_is_of_all_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "__file__", str(tmp_path / "telemetry/results.py"))
    (tmp_path / "models").mkdir()
    seen = set()
    for place, text in (("loop.py", "a"), ("loop.py", "b"), ("models/loop.py", "b"), ("models/loop.py", "c")):
        (tmp_path / place).write_text(text)
        seen.add(code_sha256())
    assert len(seen) == 4
