"""The machine is looked at before anything is made."""

import sys
from pathlib import Path

import pytest

from rehearsal.preflight import check_machine
from trainyard.base import InputError
from trainyard.config.settings import StackSettings

SETTINGS = StackSettings.model_validate(
    {"instance_type": "c7i.xlarge", "nodes": 2, "job": {"name": "a", "dataset": "d", "train": {}}}
)


def test_a_system_other_than_linux_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(InputError, match=r"the system = 'darwin': .* as Linux has them\. Rehearse in a Linux machine"):
        check_machine(tmp_path / "build/rehearsal/x", tmp_path, SETTINGS, "process")


def test_this_machine_will_do_and_is_not_touched(tmp_path: Path) -> None:
    check_machine(tmp_path / "build/rehearsal/x", tmp_path, SETTINGS, "process")
    assert list(tmp_path.iterdir()) == []
