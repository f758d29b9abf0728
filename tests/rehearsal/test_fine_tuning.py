"""A rehearsal of the stack that fine-tunes a model, with the files of examples/fine-tuning."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.rehearsal.conftest import run_rehearsal

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def report(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The report of the rehearsal."""
    folder = tmp_path_factory.mktemp("finetune")
    chats = [str(folder / "chats"), "--tokenizer", str(folder / "model"), "--sequence-length", "2048"]
    for command in (
        [str(ROOT / "examples/fine-tuning/create_files.py"), str(folder)],
        ["-m", "trainer.prepare", "chats", *chats, "--target", str(folder / "data"), "--name", "chats"],
    ):
        subprocess.run([sys.executable, *command], cwd=ROOT, check=True, timeout=120)
    options = ["--model", str(folder / "model"), "--data", str(folder / "data")]
    ended = run_rehearsal(tree, "--stack", "finetune", *options)
    assert ended.exit_status == 0, ended.stderr
    return ended.report


def test_rehearsal_succeeds(report: dict[str, Any]) -> None:
    assert report["ok"]
    assert report["leaked"] == []
    assert report["last_loss"] < report["first_loss"]


def test_results_have_the_merged_model_with_its_tokenizer(report: dict[str, Any]) -> None:
    text = json.dumps(report)
    assert "model.safetensors" in text or "export" in text
