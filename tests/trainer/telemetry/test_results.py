"""Derived values of results.json."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.trainer.conftest import tiny
from trainer.checkpoints import Progress
from trainer.settings import Environment
from trainer.telemetry import results
from trainer.telemetry.results import build_results, code_sha256


@pytest.mark.parametrize(("model", "tokens"), [({"sequence_length": 32}, 10 * 32), ({"kind": "images"}, None)])
def test_tokens_are_samples_times_length_except_for_images(
    alone: Environment, model: dict[str, object], tokens: int | None
) -> None:
    run_results = build_results(
        tiny(model=model),
        replace(alone, world_size=2),
        Progress(step=5, consumed=10, first_loss=5.0, last_loss=4.0),
        validation_loss=4.5,
        seconds=1.0,
        figures=None,
        parameters=7,
        checkpoints=["/c/step-00000005/"],
    )
    assert (run_results.samples, run_results.tokens, run_results.world_size) == (10, tokens, 2)
    assert run_results.versions["torch"] == torch.__version__.split("+")[0]


def test_hash_covers_names_and_contents_of_all_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "__file__", str(tmp_path / "telemetry/results.py"))
    (tmp_path / "models").mkdir()
    hashes = set()
    for name, text in (("loop.py", "a"), ("loop.py", "b"), ("models/loop.py", "b"), ("models/loop.py", "c")):
        (tmp_path / name).write_text(text)
        hashes.add(code_sha256())
    assert len(hashes) == 4
