"""The standby of the next attempt: when it starts, what it gets, and when it ends."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from rehearsal.aws.process import EmulatedAws
from tests.polling import eventually
from tests.trainyard.node.agent.nodes import NodeWithAgent
from trainyard.models.rank_progress import RankProgress, progress_file
from trainyard.node.agent import attempt as attempt_module
from trainyard.node.agent.attempt import AttemptTorchrun
from trainyard.node.agent.job_process import LOG, STANDBY_FILE
from trainyard.node.agent.torchrun import TRAINER_LAUNCHER

pytestmark = pytest.mark.usefixtures("systemd")

# A launcher whose job writes what it was started with, and fails when the file `failed` exists.
LAUNCHER = """
import json, os, pathlib, sys, time
arguments = sys.argv[1:]
was_standby = arguments == ["--standby"]
if was_standby:
    line = sys.stdin.readline()
    if not line:
        raise SystemExit(0)
    start = json.loads(line)
    arguments, variables = start["arguments"], start["variables"]
    os.environ.update(variables)
content = {"pid": os.getpid(), "standby": was_standby, "arguments": arguments, "secret": os.environ.get("TOKEN")}
pathlib.Path(os.environ["METRICS_DIR"], "started.json").write_text(json.dumps(content))
while not pathlib.Path(os.environ["METRICS_DIR"], "failed").exists():
    time.sleep(0.05)
raise SystemExit(1)
"""


class StandbyNode(NodeWithAgent):
    """A node whose run has the built-in trainer, with a secret."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (folder / "bundle/trainer").mkdir(parents=True)
        (folder / "bundle/trainer/launcher.py").write_text(LAUNCHER)
        (folder / "bundle").rename(folder / "code")
        super().__init__(folder, monkeypatch)
        (folder / "bundle").rmdir()
        (folder / "bundle").symlink_to(folder / "code")
        launcher = [sys.executable, "-m", TRAINER_LAUNCHER]
        monkeypatch.setattr(attempt_module, "torchrun_command", lambda **_: [*launcher, "--rdzv-id=1"])
        monkeypatch.setattr(attempt_module, "job_python", lambda *_: Path(sys.executable))
        monkeypatch.setattr(attempt_module, "read_secrets", lambda *_: {"TOKEN": "the-value"})

    def attempt_folder(self, attempt: int) -> Path:
        return self.folder / "runs" / self.record.run / f"attempt-{attempt:04d}"

    def started(self, attempt: int) -> dict[str, Any]:
        """What the job of an attempt was started with."""
        file = self.attempt_folder(attempt) / "metrics/started.json"
        eventually(lambda: file.exists() and file.stat().st_size > 0, f"the start of attempt {attempt}")
        content: dict[str, Any] = json.loads(file.read_text())
        return content

    def standby(self) -> psutil.Process:
        """The process that waits for attempt 2, once the ranks of attempt 1 have made a step."""
        self.make_progress()
        eventually(lambda: self.find_standby() is not None, "the standby")
        process = self.find_standby()
        assert process is not None
        return process

    def make_progress(self) -> None:
        """Make a step in attempt 1."""
        self.started(1)
        progress = RankProgress(rank=0, step=1, time=1.0, step_seconds=0.1)
        progress_file(self.attempt_folder(1) / "metrics", 0).write_text(progress.model_dump_json())

    def find_standby(self) -> psutil.Process | None:
        unit = self.agent._standby
        if unit is None or not unit.process_id:
            return None
        children = psutil.Process(unit.process_id).children()
        return children[0] if children else None

    def fail(self, attempt: int) -> None:
        (self.attempt_folder(attempt) / "metrics/failed").touch()
        self.wait_for(f"workers_failed {attempt}")


@pytest.fixture
def node(account: EmulatedAws, systemd: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandbyNode]:
    created = StandbyNode(tmp_path, monkeypatch)
    yield created
    created.close()
    attempt, standby = created.agent._attempt, created.agent._standby  # the agent's thread no longer sets them
    if attempt is not None:
        attempt.kill()
    if standby is not None:
        standby.kill()


def test_first_attempt_starts_without_a_standby(node: StandbyNode) -> None:
    node.request(attempt=1)
    assert node.started(1)["standby"] is False
    assert node.agent._standby is None


def test_next_attempt_starts_in_the_standby(node: StandbyNode) -> None:
    node.request(attempt=1)
    standby = node.standby()
    node.fail(1)
    node.request(attempt=2)
    started = node.started(2)
    assert (started["pid"], started["standby"], started["arguments"]) == (standby.pid, True, ["--rdzv-id=1"])
    node.fail(2)


def test_standby_gets_the_secrets_only_when_the_attempt_starts(node: StandbyNode) -> None:
    node.request(attempt=1)
    standby = node.standby()
    file = node.attempt_folder(2) / "process" / STANDBY_FILE
    assert "TOKEN" not in standby.environ()
    assert ("the-value" not in file.read_text(), file.stat().st_mode & 0o777) == (True, 0o600)
    node.fail(1)
    node.request(attempt=2)
    assert node.started(2)["secret"] == "the-value"
    eventually(lambda: not file.exists(), "the deletion of the standby's file")


def test_attempt_starts_without_a_standby_that_has_ended(node: StandbyNode) -> None:
    node.request(attempt=1)
    standby = node.standby()
    standby.kill()
    unit = node.agent._standby
    assert unit is not None
    eventually(lambda: unit.exit_code() is not None, "the end of the unit")
    node.fail(1)
    node.request(attempt=2)
    assert node.started(2)["standby"] is False


def test_standby_of_another_attempt_is_stopped(node: StandbyNode) -> None:
    node.request(attempt=1)
    standby = node.standby()
    node.fail(1)
    node.request(attempt=3)
    assert node.started(3)["standby"] is False
    assert not standby.is_running()


def test_standby_ends_with_the_run(node: StandbyNode) -> None:
    node.request(attempt=1)
    standby = node.standby()
    node.request(attempt=1, stop=True)
    node.wait_for("stopped 1")
    assert not standby.is_running()


def test_standby_of_a_killed_agent_is_replaced(node: StandbyNode) -> None:
    node.request(attempt=1)
    before = node.standby()
    node.kill_agent()
    after = node.standby()
    assert (before.is_running(), after.is_running()) == (False, True)


def test_attempt_that_a_killed_agent_has_not_handed_over_is_reported(node: StandbyNode) -> None:
    node.request(attempt=1)
    standby = node.standby()
    node.fail(1)
    node.stop_agent()
    node.agent._state_file.update(attempt=2, attempt_reported=False)
    node.start_agent()
    node.wait_for("workers_failed 2")
    assert not standby.is_running()


def test_failed_rank_is_reported_before_the_attempt_has_ended(node: StandbyNode) -> None:
    node.request(attempt=1)
    job = psutil.Process(node.started(1)["pid"])
    (node.attempt_folder(1) / "process" / LOG).write_text("Sending process 2 closing signal SIGTERM\n")
    node.wait_for("rank_failed 1")
    assert job.is_running()


def test_run_without_a_standby_has_none(node: StandbyNode) -> None:
    job = node.record.job.model_copy(update={"standby": False})
    node.stop_agent()
    node.record = node.record.model_copy(update={"job": job})
    node.start_agent()
    node.request(attempt=1)
    eventually(lambda: node.agent._attempt is not None, "the attempt")  # the job may start before the agent knows it
    attempt = node.agent._attempt
    assert attempt is not None
    assert not attempt.has_standby


def test_standby_that_cannot_start_is_not_tried_again(node: StandbyNode, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def fail(attempt: AttemptTorchrun) -> None:
        calls.append(attempt.number)
        raise OSError("systemd-run: no memory")

    monkeypatch.setattr(AttemptTorchrun, "start_standby", fail)
    node.request(attempt=1)
    node.make_progress()
    eventually(lambda: bool(calls), "the start of the standby")
    node.fail(1)
    node.request(attempt=2)
    assert node.started(2)["standby"] is False
    assert calls == [1]
