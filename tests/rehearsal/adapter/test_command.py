"""Local commands, such as the launch, run as the provider runs them."""

import re
import sys
import threading
from pathlib import Path

import pytest

from rehearsal.adapter.account import EmulatedAccount, ResourceRequest
from rehearsal.adapter.errors import CommandFailedError
from rehearsal.adapter.mocks import UpError
from rehearsal.adapter.teardown import destroy
from rehearsal.aws.process import EmulatedAws
from tests.polling import eventually
from tests.rehearsal.adapter.conftest import Deploy

SECONDS = 20.0


@pytest.fixture
def running(aws: EmulatedAws) -> EmulatedAccount:
    return EmulatedAccount(aws.region)


def command(create: str, delete: str = "true", **environment: str) -> ResourceRequest:
    inputs = {"create": create, "delete": delete, "environment": environment}
    return ResourceRequest(urn="urn:c", type="command:local:Command", name="job", inputs=inputs)


def test_up_launches_after_the_manifest_and_destroy_stops_the_job_first(
    aws: EmulatedAws, running: EmulatedAccount, tree: Path
) -> None:
    deploy = Deploy(tree)
    run = deploy("launched", running, "local")
    assert run.exports["launch"] == '{"run": "r-1"}'
    target = f"--stack launched --manifest {run.exports['manifest']}"
    (output,) = [event.text for event in deploy.events if event.kind == "output"]
    sha256 = r"--sha256 [0-9a-f]{64} --trigger none"
    assert re.fullmatch(f"launcher: launch {re.escape(target)} {sha256} in us-east-1", output)
    created = [event.name for event in deploy.events if event.kind == "created"]
    assert created.index("launch") > created.index("manifest")

    deploy.events.clear()
    destroy(run, on_event=deploy.events.append)
    launched, stopped = (tree / "calls").read_text().splitlines()
    assert re.fullmatch(f"launch {re.escape(target)} {sha256}", launched)
    assert stopped == f"stop {target}"
    deleted = [event.name for event in deploy.events if event.kind == "deleted"]
    assert deleted.index("launch") < deleted.index("manifest")
    assert deleted.index("network-vpc") > max(
        deleted.index(name) for name in ("network-private", "security-nodes", "network-nat")
    )


def test_failed_launch_fails_the_up_and_destroy_does_not_stop_a_job(
    aws: EmulatedAws, running: EmulatedAccount, tree: Path
) -> None:
    launcher = tree / "infra/launcher"
    launcher.write_text('#!/bin/sh\necho "$*" >> ../calls\necho "no capacity in us-east-1a" >&2\nexit 1\n')
    with pytest.raises(UpError, match=r"(?s)launch.*status 1.*no capacity in us-east-1a") as failed:
        Deploy(tree)("unlaunched", running, "local")
    destroy(failed.value.deployment)
    (call,) = (tree / "calls").read_text().splitlines()
    assert call.startswith("launch --stack unlaunched --manifest s3://")


def test_lines_of_stderr_are_reported_while_the_command_runs(running: EmulatedAccount, tmp_path: Path) -> None:
    """The command exits only after its first line was reported."""
    reported = tmp_path / "reported"
    (tmp_path / "infra").mkdir()
    script = f"echo first >&2; until [ -e {reported} ]; do sleep 0.05; done; echo '{{}}'"
    result: list[object] = []
    lines: list[str] = []

    def on_output(line: str) -> None:
        lines.append(line)
        reported.touch()

    thread = threading.Thread(
        target=lambda: result.append(running.create(command(script), tmp_path, on_output)), daemon=True
    )
    thread.start()
    thread.join(SECONDS)
    assert lines == ["first"]
    assert result == [("job-command", {"stdout": "{}", "stderr": "first"})]


def test_command_has_the_environment_and_runs_in_the_programs_folder(running: EmulatedAccount, tmp_path: Path) -> None:
    _, outputs = running.create(command('echo "$GREETING from $PWD"', GREETING="hello"), tmp_path, lambda line: None)
    assert outputs["stdout"] == f"hello from {tmp_path}"


def test_error_of_a_failed_command_has_the_end_of_stderr(running: EmulatedAccount, tmp_path: Path) -> None:
    with pytest.raises(CommandFailedError, match=r"(?s)job.*status 3\nreason of the failure"):
        running.create(command("echo reason of the failure >&2; exit 3"), tmp_path, lambda line: None)


def test_failed_delete_is_an_error(running: EmulatedAccount, tmp_path: Path) -> None:
    with pytest.raises(CommandFailedError, match="status 4"):
        running.delete(command("true", delete="exit 4"), tmp_path, lambda line: None)


# A launch that rolls back when its parent process has ended.
CHILD = """
import os, pathlib, sys, time
parent = os.getppid()
pathlib.Path(sys.argv[1]).touch()
while os.getppid() == parent:
    time.sleep(0.02)
print("rolled back", file=sys.stderr)
"""


def test_stop_kills_the_shell_and_waits_for_its_child_process(running: EmulatedAccount, tmp_path: Path) -> None:
    """As the provider does: a launch is the child, and rolls back when it notices that the shell has ended."""
    started = tmp_path / "started"
    lines: list[str] = []
    (tmp_path / "infra").mkdir()
    (tmp_path / "child.py").write_text(CHILD)
    script = f"{sys.executable} {tmp_path}/child.py {started}; exit"
    failed: list[BaseException] = []

    def run() -> None:
        try:
            running.create(command(script), tmp_path, lines.append)
        except CommandFailedError as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    eventually(started.exists, "the start of the command")
    running.stop()
    thread.join(SECONDS)
    assert failed
    assert lines == ["rolled back"]
