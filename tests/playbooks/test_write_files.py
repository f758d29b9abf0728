"""The project's Ansible module `write_files` writes several text files in one task."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

MODULE = Path(__file__).parents[2] / "playbooks/library/write_files.py"


def run(files: dict[str, str], **parameters: Any) -> dict[str, Any]:
    """Run the module as Ansible does, with its arguments on standard input, and return its result."""
    arguments = {"ANSIBLE_MODULE_ARGS": {"files": files, **parameters}}
    process = subprocess.run([sys.executable, MODULE], input=json.dumps(arguments), capture_output=True, text=True)
    result: dict[str, Any] = json.loads(process.stdout)
    return result


def test_only_files_that_differ_are_written(tmp_path: Path) -> None:
    missing, unchanged = tmp_path / "new/missing", tmp_path / "unchanged"
    unchanged.write_text("same")
    unchanged.chmod(0o644)
    assert run({str(missing): "1\n", str(unchanged): "same"})["written"] == [str(missing)]
    assert missing.read_text() == "1\n"
    second = run({str(missing): "1\n", str(unchanged): "same"})
    assert (second["changed"], second["written"]) == (False, [])


def test_a_different_mode_is_corrected(tmp_path: Path) -> None:
    file = tmp_path / "a"
    run({str(file): "x"}, mode="0755")
    file.chmod(0o600)
    assert run({str(file): "x"}, mode="0755")["changed"]
    assert file.stat().st_mode & 0o777 == 0o755


def test_check_mode_reports_the_change_and_writes_nothing(tmp_path: Path) -> None:
    result = run({str(tmp_path / "a"): "x"}, _ansible_check_mode=True)
    assert result["changed"]
    assert not (tmp_path / "a").exists()


def test_a_path_that_cannot_be_written_fails_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = run({str(tmp_path / "file/a"): "x"})
    assert result["failed"]
    assert result["msg"].startswith(f"cannot write {tmp_path / 'file'}")


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `systemctl` on PATH that prints the content of the returned file and records its calls in calls.txt."""
    response, program = tmp_path / "response", tmp_path / "bin/systemctl"
    response.write_text("NeedDaemonReload=no\n")
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/calls.txt\ncat {response}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return response


@pytest.mark.parametrize(("response", "reloaded"), [("no", False), ("yes", True)])
def test_systemd_is_reloaded_if_a_unit_was_written_or_is_outdated(
    tmp_path: Path, systemctl: Path, response: str, reloaded: bool
) -> None:
    unit = {str(tmp_path / "etc/systemd/system/a.service"): "[Service]\n"}
    assert run(unit, reload_systemd=True)["reloaded"]
    systemctl.write_text(f"NeedDaemonReload={response}\n")
    result = run(unit, reload_systemd=True)
    assert (result["reloaded"], result["changed"], result["written"]) == (reloaded, reloaded, [])
    calls = (tmp_path / "calls.txt").read_text().splitlines()
    assert calls.count("daemon-reload") == 1 + reloaded
    assert calls[1] == "show --property=NeedDaemonReload a.service"


def test_a_relative_path_is_refused() -> None:
    assert run({"a": "x"})["msg"] == "not absolute paths: a"
