"""The preview refuses a custom model whose code the nodes do not get."""

import subprocess
from pathlib import Path

import pytest

from infra.validators.custom_model import REGISTRY, validate_custom_model
from tests.problems import rejects
from tests.trainyard.config.stacks import changed
from trainyard.config.settings import StackSettings

FILE = "trainer/models/gru.py"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with a registered model, whose file git tracks."""
    (tmp_path / "trainer/models").mkdir(parents=True)
    (tmp_path / REGISTRY).write_text('MODELS: dict[str, str] = {"gru": "trainer.models.gru:GRU"}\n')
    (tmp_path / FILE).write_text("class GRU: ...\n")
    for command in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return tmp_path


def settings(name: str) -> StackSettings:
    model = {"kind": "custom", "name": name, "vocabulary": 256, "sequence_length": 32}
    return StackSettings.model_validate(changed({"job.train": {"model": model}}))


def test_registered_model_passes(root: Path) -> None:
    validate_custom_model(settings("gru"), root)


def test_model_that_is_not_registered_is_refused(root: Path) -> None:
    with rejects("model_not_registered", "job.train.model.name", "Did you mean gru?"):
        validate_custom_model(settings("grus"), root)


def test_model_that_git_does_not_track_is_refused(root: Path) -> None:
    subprocess.run(["git", "rm", "-q", "--cached", FILE], cwd=root, check=True)
    with rejects("model_not_in_bundle", f"nodes do not get its file, {FILE}", f"git add {FILE}"):
        validate_custom_model(settings("gru"), root)
