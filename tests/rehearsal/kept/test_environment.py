"""The files of a kept rehearsal for the user's shell."""

import subprocess
from pathlib import Path

import pytest

from rehearsal.kept.environment import remove_files, write_environment, write_programs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "a b ä $HOME"
    folder.mkdir()
    return folder


def run_in_shell(shell: str, file: Path, command: str, **variables: str) -> str:
    environment = {"PATH": "/usr/bin:/bin", **variables}
    script = f'PS1="${{PROMPT-}}"; . "$0" && {command}'  # a shell that is not interactive removes PS1
    completed = subprocess.run(
        [shell, "-c", script, str(file)], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert completed.stderr == ""
    return completed.stdout


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_shell_has_the_variables_and_none_of_the_user(shell: str, folder: Path) -> None:
    file = write_environment(
        folder, "a", {"AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": "http://127.0.0.1:1", "X": "a 'b'"}
    )
    own = {
        "AWS_PROFILE": "prod",
        "AWS_SESSION_TOKEN": "t",
        "AWS_REGION": "eu-west-1",
        "AWS_ENDPOINT_URL_S3": "http://b",
    }
    lines = run_in_shell(shell, file, "env", **own).splitlines()
    assert sorted(line for line in lines if line.startswith(("AWS_", "X="))) == [
        "AWS_ENDPOINT_URL=http://127.0.0.1:1",
        "AWS_REGION=us-east-1",
        "X=a 'b'",
    ]


def test_prompt_names_the_rehearsal(folder: Path) -> None:
    file = write_environment(folder, "a", {})
    assert run_in_shell("bash", file, 'echo "$PS1"', PROMPT="$ ") == "(rehearsal a) $ \n"


def test_programs_of_the_rehearsal_are_first_on_path(folder: Path) -> None:
    write_programs(folder)
    file = write_environment(folder, "a", {})
    output = run_in_shell("bash", file, "session-manager-plugin --version && trainyard --version")
    assert [line.split()[0] for line in output.splitlines()] == ["1.2.707.0", "trainyard"]


def test_removed_files_cannot_be_used_again(folder: Path) -> None:
    write_programs(folder)
    write_environment(folder, "a", {})
    remove_files(folder)
    assert list(folder.iterdir()) == []
