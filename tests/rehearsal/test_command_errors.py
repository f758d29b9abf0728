"""A failed `trainyard` command of a rehearsal is reported with the command's own error message."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from rehearsal.stages import Stages
from tests.rehearsal.conftest import ROOT
from trainyard.config.project import read_project


def test_message_of_a_failed_command_has_one_prefix() -> None:
    display, clock = SimpleNamespace(update_status=lambda subject, text: None), SimpleNamespace(current="reserve")
    options = SimpleNamespace(stack="nosuch", project=read_project(ROOT))
    context: Any = SimpleNamespace(options=options, display=display, clock=clock)
    with pytest.raises(RuntimeError, match=r"^trainyard reserve failed: --stack = 'nosuch': .* does not exist\."):
        Stages(context).run_cli("reserve", "--yes")


def test_wrong_option_is_reported_with_the_name_of_the_command() -> None:
    command = [sys.executable, "-m", "trainyard", "rehearse", "--engin", "mocks"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    lines = ended.stderr.splitlines()
    assert (ended.returncode, lines[0]) == (2, "Usage: trainyard rehearse [OPTIONS]")
    assert lines[-1].startswith("Error: No such option: --engin")
