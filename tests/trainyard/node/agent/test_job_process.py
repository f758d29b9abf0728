"""The program that runs torchrun in its unit: exit code, environment, signals."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.polling import eventually
from trainyard.node.agent import job_process
from trainyard.node.agent.job_process import EXIT_FILE, EXIT_NOT_STARTED, LOG, START_FILE

Start = Callable[..., "subprocess.Popen[bytes]"]
STOPPABLE = 'trap "exit 5" TERM; echo up; while :; do sleep 0.05; done'


def read_exit_code(folder: Path) -> int | None:
    file = folder / EXIT_FILE
    return int(file.read_text()) if file.exists() else None


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """A function that starts the program with a shell script as its command."""
    started: list[subprocess.Popen[bytes]] = []

    def run(script: str, program: str = "/bin/sh", **variables: str) -> "subprocess.Popen[bytes]":
        content = job_process.start_content([program, "-c", script], tmp_path, variables)
        (tmp_path / START_FILE).write_bytes(content)
        started.append(subprocess.Popen([sys.executable, "-I", job_process.__file__, str(tmp_path)]))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.wait()


def test_exit_code_is_stored(start: Start, tmp_path: Path) -> None:
    assert start("exit 3").wait(30) == 0
    assert read_exit_code(tmp_path) == 3


def test_signal_that_ended_the_command_is_stored(start: Start, tmp_path: Path) -> None:
    start("kill -KILL $$").wait(30)
    assert read_exit_code(tmp_path) == -signal.SIGKILL


def test_killed_program_writes_no_exit_code(start: Start, tmp_path: Path) -> None:
    process = start("echo up; exec sleep 1")
    eventually((tmp_path / LOG).exists, "the start of the command")
    process.kill()
    process.wait()
    assert read_exit_code(tmp_path) is None


def test_sigterm_is_passed_on_to_the_command(start: Start, tmp_path: Path) -> None:
    process = start(STOPPABLE)
    log = tmp_path / LOG
    eventually(lambda: log.exists() and log.read_text() == "up\n", "the start of the command")
    process.terminate()
    assert process.wait(30) == 0
    assert read_exit_code(tmp_path) == 5


def test_command_has_its_variables_and_output_in_the_log(start: Start, tmp_path: Path) -> None:
    start("echo $TOKEN; echo $PWD >&2", TOKEN="secret").wait(30)
    assert (tmp_path / LOG).read_text() == f"secret\n{tmp_path}\n"


def test_start_file_is_deleted_before_the_command_runs(start: Start, tmp_path: Path) -> None:
    start("ls").wait(30)
    assert START_FILE not in (tmp_path / LOG).read_text()


def test_command_that_does_not_exist_has_the_exit_code_of_a_shell(start: Start, tmp_path: Path) -> None:
    start("", program="/missing/program").wait(30)
    assert read_exit_code(tmp_path) == EXIT_NOT_STARTED
    assert "/missing/program" in (tmp_path / LOG).read_text()


def test_exit_code_appears_when_it_is_complete(start: Start, tmp_path: Path) -> None:
    """The agent may read the file at any time."""
    start("exit 0").wait(30)
    assert sorted(file.name for file in tmp_path.iterdir()) == [EXIT_FILE, LOG]
