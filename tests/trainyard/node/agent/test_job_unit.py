"""Units of attempts: start, a second agent, stop and kill, with the init process of the process backend."""

import shlex
import signal
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import psutil
import pytest

from tests.polling import eventually
from trainyard.node.agent.job_process import LOG
from trainyard.node.agent.job_unit import JobUnit, Launch

pytestmark = pytest.mark.usefixtures("systemd")
_runs = count(1)


class Units:
    """Units in a folder; a unit that still runs is killed after the test."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.run = folder, f"unit-{next(_runs)}"
        self.unit = JobUnit(self.run, 1, folder)

    def start(self, script: str) -> JobUnit:
        self.unit.start(["/bin/sh", "-c", script], self.folder, {})
        return self.unit

    def attached(self) -> JobUnit:
        """The same unit, as another agent finds it."""
        unit = JobUnit(self.run, 1, self.folder)
        unit.attach()
        return unit

    def log(self) -> str:
        log = self.unit.files / LOG
        return log.read_text() if log.exists() else ""


@pytest.fixture
def units(tmp_path: Path) -> Iterator[Units]:
    created = Units(tmp_path)
    yield created
    created.unit.kill()


def test_another_agent_finds_the_running_unit_and_its_exit_code(units: Units) -> None:
    first = units.start("while [ ! -e done ]; do sleep 0.05; done; exit 4")
    second = units.attached()
    assert (second.process_id, second.exit_code()) == (first.process_id, None)
    (units.folder / "done").touch()
    eventually(lambda: second.exit_code() == 4, "the exit code")
    assert units.attached().exit_code() == 4


def test_unit_that_was_never_started_has_the_exit_code_of_a_killed_process(units: Units) -> None:
    assert units.attached().exit_code() == -signal.SIGKILL


def test_unit_with_a_killed_main_process_has_its_exit_code(units: Units) -> None:
    unit = units.start("exec sleep 600")
    psutil.Process(unit.process_id).kill()
    eventually(lambda: unit.exit_code() == -signal.SIGKILL, "the end of the unit")


def test_stop_sends_sigterm_to_the_command(units: Units) -> None:
    unit = units.start('trap "exit 6" TERM; echo up; while :; do sleep 0.05; done')
    eventually(lambda: units.log() == "up\n", "the start of the command")
    unit.stop()
    assert unit.exit_code() == 6


def test_kill_ends_all_processes_in_all_sessions(units: Units) -> None:
    unit = units.start("setsid sleep 600 & setsid -f sleep 601; trap '' TERM; echo up; while :; do sleep 0.05; done")
    eventually(lambda: units.log() == "up\n", "the start of the command")
    unit.kill()
    commands = [process.info["cmdline"] for process in psutil.process_iter(["cmdline"])]
    assert not any(shlex.join(command or []) in {"sleep 600", "sleep 601"} for command in commands)


def test_unit_that_runs_cannot_be_started_twice(units: Units) -> None:
    units.start("exec sleep 600")
    second = JobUnit(units.run, 1, units.folder)
    with pytest.raises(OSError, match=r"systemd-run: Unit .* was already loaded"):
        second.start(["/bin/true"], units.folder, {})


def start_prepared(units: Units, preparation: str, script: str) -> JobUnit:
    launch = Launch(prepare=[["/bin/sh", "-c", preparation]])
    units.unit.start(["/bin/sh", "-c", script], units.folder, {"TOKEN": "secret"}, launch)
    return units.unit


def test_the_command_starts_after_its_preparation(units: Units) -> None:
    unit = start_prepared(units, f"touch {units.folder}/prepared", f"[ -e {units.folder}/prepared ] && exit 3")
    eventually(lambda: unit.exit_code() == 3, "the exit code")


def test_a_failed_preparation_has_its_exit_code_and_output(units: Units) -> None:
    unit = start_prepared(units, "echo no space; exit 78", f"touch {units.folder}/started")
    eventually(lambda: unit.exit_code() == 78, "the exit code")
    assert unit.output() == "no space\n"
    assert not (units.folder / "started").exists()


def test_the_preparation_has_no_secrets(units: Units) -> None:
    unit = start_prepared(units, "echo token: $TOKEN", "echo token: $TOKEN")
    eventually(lambda: unit.exit_code() == 0, "the end of the command")
    assert unit.output() == "token:\ntoken: secret\n"


def test_another_agent_finds_a_unit_that_prepares(units: Units) -> None:
    start_prepared(units, f"while [ ! -e {units.folder}/go ]; do sleep 0.05; done", "exit 4")
    second = units.attached()
    assert (second.process_id, second.exit_code()) == (0, None)
    (units.folder / "go").touch()
    eventually(lambda: second.exit_code() == 4, "the exit code")


def test_a_unit_that_prepares_can_be_stopped(units: Units) -> None:
    unit = start_prepared(units, "exec sleep 600", f"touch {units.folder}/started")
    unit.stop()
    eventually(lambda: unit.exit_code() is not None, "the end of the unit")
    assert not (units.folder / "started").exists()


def test_the_metadata_service_is_not_in_the_environment(units: Units, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1")
    unit = units.start("env")
    eventually(lambda: unit.exit_code() == 0, "the end of the command")
    assert "METADATA_SERVICE" not in units.log()
