"""`trainyard up`: the calls of the Pulumi CLI, by an executable of the test, and Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.polling import eventually

NO_STACK = "error: no stack named 'a' found"


class Pulumi:
    """An executable named pulumi: records its arguments and returns the result of queries."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "bin"
        self.folder.mkdir()
        self.calls_file = folder / "calls"

    def install(self, up: str = "exit 0", has_stack: bool = True) -> None:
        query = "exit 0" if has_stack else f'echo "{NO_STACK}" >&2; exit 255'
        file = self.folder / "pulumi"
        file.write_text(
            f'#!/bin/bash\necho "$*" >> {self.calls_file}\n'
            f'case "$1 $2" in "stack output") echo \'{{"launch": "x"}}\'; exit 0;; stack*) {query};; esac\n'
            f"echo working\n{up}\n"
        )
        file.chmod(0o755)

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "trainyard", "up", "-s", "a", *arguments],
            env={**os.environ, "PATH": f"{self.folder}:/usr/bin:/bin"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        with self.start(*arguments) as process:
            stdout, stderr = process.communicate(timeout=60)
        return subprocess.CompletedProcess([], process.returncode, stdout, stderr)

    @property
    def calls(self) -> list[str]:
        return [line for line in self.calls_file.read_text().splitlines() if not line.startswith("stack ")]


@pytest.fixture
def pulumi(tmp_path: Path) -> Pulumi:
    return Pulumi(tmp_path)


@pytest.mark.parametrize(
    ("option", "call"),
    [((), "up --stack a"), (("--yes",), "up --yes --stack a"), (("--preview",), "preview --diff --stack a")],
)
def test_up_runs_pulumi(option: tuple[str, ...], call: str, pulumi: Pulumi) -> None:
    pulumi.install()
    completed = pulumi.run(*option)
    assert (completed.returncode, completed.stdout) == (0, ""), completed.stderr
    assert pulumi.calls == [call]
    assert "working" in completed.stderr


def test_json_has_the_outputs(pulumi: Pulumi) -> None:
    pulumi.install()
    result = json.loads(pulumi.run("--yes", "--json").stdout)
    assert result == {"stack": "a", "preview": False, "pulumi_exit_status": 0, "outputs": {"launch": "x"}}


def test_failed_up_has_exit_status_1(pulumi: Pulumi) -> None:
    pulumi.install("exit 255")
    completed = pulumi.run("--yes", "--json")
    assert (completed.returncode, json.loads(completed.stdout)["pulumi_exit_status"]) == (1, 255)


def test_stack_that_the_backend_does_not_have_is_refused(pulumi: Pulumi) -> None:
    pulumi.install(has_stack=False)
    completed = pulumi.run("--yes")
    assert completed.returncode == 2
    assert "Create it: pulumi stack init a -C " in completed.stderr
    assert pulumi.calls == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_does_not_kill_pulumi(number: int, pulumi: Pulumi, tmp_path: Path) -> None:
    cancelled = tmp_path / "cancelled"
    # Longer than the 0.25 s after which subprocess.run kills a child on Ctrl-C.
    pulumi.install(
        f"trap 'kill $!; sleep 1; touch {cancelled}; exit 255' INT; touch {tmp_path}/started; sleep 30 & wait"
    )
    with pulumi.start("--yes") as process:
        eventually((tmp_path / "started").exists, "the start of pulumi", 30)
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # as a terminal does
        else:
            process.send_signal(number)
        process.communicate(timeout=30)
    assert (process.returncode, cancelled.exists()) == (1, True)
