"""The launch command, run as the provider runs it."""

import re
import threading
import time
from pathlib import Path

import pytest

from rehearsal.adapter.account import Adapter, Subject
from rehearsal.adapter.errors import CommandFailed
from rehearsal.adapter.mocks import UpFailed
from rehearsal.adapter.teardown import destroy
from rehearsal.aws.process import EmulatedAws
from tests.rehearsal.adapter.conftest import Deploy

SECONDS = 20.0


@pytest.fixture
def running(aws: EmulatedAws) -> Adapter:
    return Adapter(aws.region)


def command(create: str, delete: str = "true", **environment: str) -> Subject:
    inputs = {"create": create, "delete": delete, "dir": "..", "environment": environment}
    return Subject(urn="urn:c", type="command:local:Command", name="job", inputs=inputs)


def test_program_launches_last_and_stops_first(aws: EmulatedAws, running: Adapter, tree: Path) -> None:
    deploy = Deploy(tree)
    run = deploy("launched", running, "local")
    assert run.exports["launch"] == '{"run": "r-1"}'
    target = f"--stack launched --manifest {run.exports['manifest']}"
    (told,) = [event.text for event in deploy.events if event.kind == "line"]
    sha256 = r"--sha256 [0-9a-f]{64}"
    assert re.fullmatch(f"launcher: launch {re.escape(target)} {sha256} in us-east-1", told)
    assert [event.name for event in deploy.events if event.kind == "created"][-1] == "launch"

    deploy.events.clear()
    destroy(run, on_event=deploy.events.append)
    launched, stopped = (tree / "calls").read_text().splitlines()
    assert re.fullmatch(f"launch {re.escape(target)} {sha256}", launched)
    assert stopped == f"stop {target}"
    gone = [event.name for event in deploy.events if event.kind == "deleted"]
    assert gone[0] == "launch"
    assert gone.index("vpc") > max(gone.index(name) for name in ("private", "nodes", "nat"))


def test_failed_launch_fails_the_run_and_is_not_stopped_later(aws: EmulatedAws, running: Adapter, tree: Path) -> None:
    launcher = tree / "trainyard/launcher"
    launcher.write_text('#!/bin/sh\necho "$*" >> calls\necho "no capacity in us-east-1a" >&2\nexit 1\n')
    with pytest.raises(UpFailed, match=r"(?s)launch.*status 1.*no capacity in us-east-1a") as failed:
        Deploy(tree)("unlaunched", running, "local")
    destroy(failed.value.deployment)
    (call,) = (tree / "calls").read_text().splitlines()
    assert call.startswith("launch --stack unlaunched --manifest s3://")


def test_lines_come_while_the_command_runs(running: Adapter, tmp_path: Path) -> None:
    """The command ends only when its first line has been told."""
    told = tmp_path / "told"
    (tmp_path / "infra").mkdir()
    script = f"echo first >&2; until [ -e {told} ]; do sleep 0.05; done; echo '{{}}'"
    result: list[object] = []
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        told.touch()

    thread = threading.Thread(target=lambda: result.append(running.create(command(script), tmp_path, say)), daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert lines == ["first"]
    assert result == [("job-command", {"stdout": "{}", "stderr": "first"})]


def test_command_sees_its_environment_and_the_programs_folder(running: Adapter, tmp_path: Path) -> None:
    _, outputs = running.create(command('echo "$GREETING from $PWD"', GREETING="hello"), tmp_path, lambda line: None)
    assert outputs["stdout"] == f"hello from {tmp_path}"


def test_failed_command_is_told_with_the_tail_of_its_stderr(running: Adapter, tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match=r"(?s)job.*status 3\nwhy it failed"):
        running.create(command("echo why it failed >&2; exit 3"), tmp_path, lambda line: None)


def test_failed_delete_is_an_error(running: Adapter, tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="status 4"):
        running.delete(command("true", delete="exit 4"), tmp_path, lambda line: None)


def test_stop_ends_the_command_and_what_it_started(running: Adapter, tmp_path: Path) -> None:
    started = tmp_path / "pid"
    failed: list[BaseException] = []

    def run() -> None:
        try:
            running.create(command(f"sleep 600 & echo $! > {started}; wait"), tmp_path, lambda line: None)
        except CommandFailed as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    deadline = time.monotonic() + SECONDS
    while not (started.exists() and started.read_text().strip()):
        assert time.monotonic() < deadline, "the command did not start"
        time.sleep(0.02)
    running.stop()
    thread.join(SECONDS)
    assert failed
    while Path(f"/proc/{started.read_text().strip()}").exists():
        assert time.monotonic() < deadline, "the command's child lives on"
        time.sleep(0.02)
