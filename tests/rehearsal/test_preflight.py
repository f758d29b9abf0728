"""Checks of this machine before a rehearsal."""

import sys
from pathlib import Path

import pytest

from rehearsal.preflight import check_machine
from tests.problems import rejects
from trainyard.config.settings import StackSettings

SETTINGS = StackSettings.model_validate(
    {"instance_type": "c7i.xlarge", "nodes": 2, "job": {"name": "a", "dataset": "d", "train": {}}}
)


def test_operating_system_other_than_linux_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with rejects("operating_system_unsupported", "darwin"):
        check_machine(tmp_path / "build/rehearsal/x", tmp_path, SETTINGS, "process")


def test_check_passes_and_creates_no_files(tmp_path: Path) -> None:
    check_machine(tmp_path / "build/rehearsal/x", tmp_path, SETTINGS, "process")
    assert list(tmp_path.iterdir()) == []
