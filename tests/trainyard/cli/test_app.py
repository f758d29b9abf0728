"""The `trainyard` command line: exit statuses, JSON output, the hand-over to the rehearsal."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from trainyard.cli import logs, rehearse
from trainyard.cli.app import app
from trainyard.config.project import PROJECT_ROOT
from trainyard.errors import InputError, Problem
from trainyard.operations.errors import LaunchError

COMMANDS = ("up", "launch", "status", "logs", "results", "shell", "stop", "destroy", "bake", "selftest")
INVALID_INPUT = InputError([Problem("--run", "x", "the stack has no such run", "Use another run", "unknown_run")])


@pytest.fixture(autouse=True)
def region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "us-east-1")


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, arguments)


def test_version_is_printed() -> None:
    result = invoke("--version")
    assert result.exit_code == 0
    assert result.stdout.startswith("trainyard 0.")


def test_unknown_step_of_the_selftest_is_one_line_and_exit_status_2() -> None:
    result = invoke("selftest", "--step", "3")
    message = "trainyard: --step = '3': the selftest has no such step. Use 1 or 2, or omit --step for both.\n"
    assert (result.exit_code, result.stderr) == (2, message)


@pytest.mark.parametrize("command", ["launch", "stop"])
@pytest.mark.parametrize("uri", ["foo", "s3://bucket"])
def test_manifest_that_is_no_s3_uri_is_one_line_and_exit_status_2(command: str, uri: str) -> None:
    result = invoke(command, "--stack", "a", "--manifest", uri)
    message = f"trainyard: --manifest = '{uri}': not an S3 URI. Use s3://BUCKET/KEY.\n"
    assert (result.exit_code, result.stderr) == (2, message)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_a_json_option(command: str) -> None:
    result = invoke(command, "--help")
    assert result.exit_code == 0
    assert "--json" in result.stdout


@pytest.mark.parametrize(
    ("error", "exit_code"), [(INVALID_INPUT, 2), (LaunchError("no capacity"), 1), (KeyboardInterrupt(), 130)]
)
def test_error_sets_exit_status_and_message(
    error: BaseException, exit_code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Iterator[tuple[str, str]]:
        raise error

    monkeypatch.setattr(logs, "read_logs", fail)
    result = invoke("logs", "--stack", "a")
    assert result.exit_code == exit_code
    assert result.stderr == f"trainyard: {str(error) or 'interrupted'}\n"


def test_logs_json_is_one_object_per_line(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [("i-1/0001/0001-rank0-stdout", "first"), ("i-1/0001/0001-rank0-stdout", "second")]
    monkeypatch.setattr(logs, "read_logs", lambda *_: iter(lines))
    result = invoke("logs", "--stack", "a", "--json")
    assert [json.loads(line) for line in result.stdout.splitlines()] == [
        {"writer": writer, "line": line} for writer, line in lines
    ]


def test_rehearse_passes_all_options_to_the_rehearsal(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(os, "execv", lambda *arguments: calls.append(arguments))
    monkeypatch.chdir(Path.cwd())  # restores the folder, which the command changes
    result = invoke("rehearse", "--stack", "local", "--nodes", "2", "--help")
    assert result.exit_code == 0, result.output
    project = ["--project", str(PROJECT_ROOT)]
    expected = [sys.executable, "-m", "rehearsal", "run", *project, "--stack", "local", "--nodes", "2", "--help"]
    assert calls == [(sys.executable, expected)]
    assert Path.cwd() == PROJECT_ROOT


def test_rehearse_without_its_packages_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearse, "find_spec", lambda name: None if name == "torch" else object())
    result = invoke("rehearse", "--stack", "local")
    assert result.exit_code == 2
    assert f"rehearse: the Python environment {sys.prefix} has no torch. Install trainyard[rehearsal]" in result.stderr


@pytest.mark.parametrize("command", ["reserve", "blocks"])
def test_unknown_stack_is_one_message_with_a_suggestion(command: str) -> None:
    result = invoke(command, "--stack", "a100-clster")
    assert result.exit_code == 2
    reason, fix = "stacks/Pulumi.a100-clster.yaml does not exist", "Did you mean a100-cluster"
    assert result.stderr.startswith(f"trainyard: --stack = 'a100-clster': {reason}. {fix}")
    assert "Use one of a100-cluster, b200-cluster" in result.stderr


@pytest.mark.parametrize("command", ["reserve", "blocks"])
def test_missing_stack_file_is_one_message(command: str, tmp_path: Path) -> None:
    file = tmp_path / "Pulumi.a.yaml"
    result = invoke(command, "--stack", "a", "--file", str(file))
    assert result.exit_code == 2
    assert result.stderr.startswith(f"trainyard: {file}: the file does not exist")


def test_option_c_selects_the_stack_files_of_another_folder(tmp_path: Path) -> None:
    working_directory = Path.cwd()
    created = invoke("-C", str(tmp_path), "init", "dev", "--json")
    assert json.loads(created.stdout)["files"][0] == "trainyard/Pulumi.dev.yaml"
    result = invoke("-C", str(tmp_path), "reserve", "--stack", "dve")
    reason = "trainyard/Pulumi.dve.yaml does not exist. Did you mean dev? Use one of dev"
    assert result.stderr == f"trainyard: --stack = 'dve': {reason}.\n"
    assert Path.cwd() == working_directory


def test_missing_folder_of_option_c_is_refused(tmp_path: Path) -> None:
    result = invoke("-C", str(tmp_path / "absent"), "status", "--stack", "dev")
    assert result.exit_code == 2
    assert result.stderr == f"trainyard: -C = '{tmp_path}/absent': no such folder. Name an existing folder.\n"


def test_rehearse_passes_the_project_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(os, "execv", lambda *arguments: calls.append(arguments))
    assert invoke("-C", str(tmp_path), "init", "dev").exit_code == 0
    monkeypatch.chdir(tmp_path)
    invoke("rehearse", "--stack", "dev")
    assert calls[0][1][3:] == ["run", "--project", str(tmp_path / "trainyard"), "--stack", "dev"]
