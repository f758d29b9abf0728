"""The agent on a node: what it does on the controller's word, on Auto Scaling's, and after its own death."""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from rehearsal.aws.process import EmulatedAws
from tests import clusters
from tests.conftest import REGION
from tests.polling import eventually
from trainyard.models.events import ActivityEvent, AgentEvent, NodeEvent, VerificationEvent
from trainyard.models.layout import RunLayout
from trainyard.models.manifest import Archive
from trainyard.models.run import Check, Control
from trainyard.models.streams import Cursor, node_events
from trainyard.node.agent import activity
from trainyard.node.agent import agent as agent_module
from trainyard.node.agent import attempt as attempt_module
from trainyard.node.agent import health_check as check_module
from trainyard.node.agent.agent import Agent
from trainyard.node.agent.attempt import Attempt
from trainyard.node.agent.drain import Departure

# A job that ends when it is told to, and saves when it is asked to.
JOB = """
import os, pathlib, time
request, done = pathlib.Path(os.environ["CHECKPOINT_REQUEST"]), pathlib.Path("done")
while not done.exists():
    if request.exists():
        request.unlink()
        pathlib.Path("saved").touch()
    time.sleep(0.05)
raise SystemExit(int(done.read_text()))
"""


class OnNode:
    """One node with its agent in a thread; `python job.py` stands where torchrun stands."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        (folder / "bundle").mkdir()
        (folder / "job.py").write_text(JOB)
        self.cluster = clusters.build(REGION)
        self.record = self.cluster.record()
        self.layout = RunLayout(self.record.run)
        self.node = clusters.worker(REGION, folder / "bundle")
        self.leaving: str | None = None
        for module in (agent_module, attempt_module):
            monkeypatch.setattr(module, "BASE", folder)
        monkeypatch.setattr(agent_module, "POLL_SECONDS", 0.05)
        monkeypatch.setattr(Departure, "cause", lambda _: self.leaving)
        monkeypatch.setattr(attempt_module, "torchrun_command", lambda **_: [sys.executable, str(folder / "job.py")])
        monkeypatch.setattr(Attempt, "workers_up", lambda _: True)
        self._start()

    def _start(self) -> None:
        self.agent = Agent(self.node, self.cluster.manifest, self.record)
        self.thread = threading.Thread(target=self.agent.serve)
        self.thread.start()

    def order(self, attempt: int, stop: bool = False, save: bool = False) -> None:
        control = Control(attempt=attempt, nodes=("i-1",), stop=stop, save=save)
        self.cluster.data.write(self.layout.control, control.model_dump_json().encode())

    def events(self) -> list[NodeEvent]:
        return list(node_events(Cursor(self.cluster.data, self.layout.events)))

    def told(self) -> list[str]:
        return [f"{one.state} {one.attempt}" for one in self.events() if isinstance(one, AgentEvent)]

    def limit(self, idle_minutes: float | None) -> None:
        """As a launch writes the run's record."""
        limits = self.record.limits.model_copy(update={"idle_minutes": idle_minutes})
        changed = self.record.model_copy(update={"limits": limits})
        self.cluster.data.write(self.layout.record, changed.model_dump_json().encode())

    def requires(self, text: str) -> None:
        """The job is a user's own, its sources are there with this list, and the stack's index is empty."""
        source, index = self.folder / "job" / ("0" * 64), self.folder / "index"
        source.parent.mkdir()
        (self.folder / "bundle").rename(source)
        index.mkdir()
        (source / "requirements.txt").write_text(text)
        (self.folder / "bundle").symlink_to(source)
        archive = Archive(uri="s3://nowhere/job.tar.gz", sha256="0" * 64)
        job = self.record.job.model_copy(update={"source": archive, "command": ("train.py",), "train": None})
        manifest = self.agent.manifest
        own = manifest.node.model_copy(update={"package_index": str(index)})
        self.agent.run = self.record.model_copy(update={"job": job})
        self.agent.manifest = manifest.model_copy(update={"node": own})

    def tells(self, word: str) -> None:
        eventually(lambda: word in self.told(), f"the agent's {word!r}")

    def finish(self, code: int) -> None:
        (self.folder / "bundle/done").write_text(str(code))

    def die(self) -> None:
        """As by SIGKILL: no last words. Then systemd starts another."""
        process = self.agent._attempt._process if self.agent._attempt else None
        self.agent._attempt = None
        self.agent.ending.set()
        self.thread.join()
        if process is not None:
            process.kill()
            process.wait()
        self._start()

    def close(self) -> None:
        self.agent.ending.set()
        self.thread.join()


@pytest.fixture
def node(account: EmulatedAws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OnNode]:
    made = OnNode(tmp_path, monkeypatch)
    yield made
    made.close()


def test_an_attempt_is_run_and_its_end_told(node: OnNode) -> None:
    node.tells("ready 0")
    node.order(1)
    node.tells("workers_up 1")
    node.finish(0)
    node.tells("workers_done 1")


def test_a_failed_attempt_is_told_and_the_next_one_run(node: OnNode) -> None:
    node.order(1)
    node.finish(3)
    node.tells("workers_failed 1")
    (node.folder / "bundle/done").unlink()
    node.order(2)
    node.tells("workers_up 2")


def test_requirements_that_no_index_has_are_told_like_a_ranks_failure(node: OnNode) -> None:
    node.requires("nowhere==1.0\n")
    node.order(1)
    node.tells("workers_failed 1")
    (event,) = (one for one in node.events() if isinstance(one, AgentEvent) and one.failures)
    assert event.failures[0].message.startswith("requirements.txt of the job: ")
    assert "nowhere" in event.failures[0].message


def test_a_job_whose_requirements_are_there_is_run(node: OnNode) -> None:
    node.requires("boto3\n")
    node.order(1)
    node.finish(0)
    node.tells("workers_done 1")


def test_a_superseded_attempt_makes_way(node: OnNode) -> None:
    node.order(1)
    node.tells("workers_up 1")
    node.order(2)
    node.tells("workers_up 2")
    assert not any(word.endswith("failed 1") for word in node.told())
    assert not (node.folder / "bundle/saved").exists()  # its peers may be gone: nothing waits for them


def test_an_attempt_that_makes_way_for_more_nodes_saves_first(node: OnNode) -> None:
    node.order(1)
    node.tells("workers_up 1")
    node.order(2, save=True)
    node.tells("workers_up 2")
    assert (node.folder / "bundle/saved").exists()


def test_stop_ends_the_workers_and_the_agent_stays(node: OnNode) -> None:
    node.order(1)
    node.tells("workers_up 1")
    process = node.agent._attempt._process if node.agent._attempt else None
    assert process is not None
    node.order(1, stop=True)
    eventually(lambda: process.poll() is not None, "the end of the workers")
    assert node.thread.is_alive()  # it has still to see the node out of its group


def test_a_stop_that_asks_for_it_saves_first(node: OnNode) -> None:
    node.order(1)
    node.tells("workers_up 1")
    node.order(1, stop=True, save=True)
    eventually(lambda: node.agent._attempt is None, "the end of the workers")
    assert (node.folder / "bundle/saved").exists()


def test_a_job_that_does_not_save_when_asked_is_not_waited_for(node: OnNode) -> None:
    node.order(1)
    node.tells("workers_up 1")
    node.agent.run = node.record.model_copy(update={"job": node.record.job.model_copy(update={"train": None})})
    node.order(1, stop=True, save=True)
    eventually(lambda: node.agent._attempt is None, "the end of the workers")
    assert not (node.folder / "bundle/saved").exists()


def test_an_agent_started_again_tells_the_attempt_as_lost(node: OnNode) -> None:
    node.order(1)
    node.tells("workers_up 1")
    node.die()
    node.tells("workers_failed 1")
    assert node.told().count("workers_up 1") == 1


def test_an_agent_started_again_repeats_nothing_that_was_told(node: OnNode) -> None:
    node.order(1)
    node.finish(0)
    node.tells("workers_done 1")
    node.die()
    eventually(lambda: node.told().count("ready 0") == 2, "the second agent")
    assert "workers_failed 1" not in node.told()


def test_an_outage_ends_no_job(node: OnNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node.order(1)
    node.tells("workers_up 1")
    away = threading.Event()

    def find(key: str) -> Any:
        away.set()
        raise OSError("S3 is away")

    with monkeypatch.context() as outage:
        outage.setattr(node.agent._data, "find", find)
        assert away.wait(10)
    node.finish(0)
    node.tells("workers_done 1")


def test_a_leaving_node_saves_says_so_and_completes_the_action(node: OnNode, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, str]] = []

    class Recorder:
        def complete_lifecycle_action(self, **asked: Any) -> None:
            calls.append((asked["LifecycleHookName"], asked["InstanceId"]))

        def record_lifecycle_action_heartbeat(self, **asked: Any) -> None:
            """Its own test is the hook's in the emulated account."""

    monkeypatch.setattr(node.agent._departure, "_autoscaling", Recorder())
    node.order(1)
    node.tells("workers_up 1")
    node.leaving = "terminating"
    node.thread.join(60)
    assert not node.thread.is_alive()
    assert (node.folder / "bundle/saved").exists()
    assert "left 1" in node.told()
    assert calls == [(node.cluster.manifest.groups[0].lifecycle_hook, "i-1")]


def looked_at_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(agent_module, "TELL_SECONDS", 0.2)


def test_a_job_that_sleeps_is_told_as_idle(node: OnNode, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at_often(monkeypatch)
    node.limit(1.0)
    node.order(1)

    def idle() -> bool:
        return any(isinstance(one, ActivityEvent) and one.idle_since is not None for one in node.events())

    eventually(idle, "the word that the job is idle")


def test_a_run_without_a_limit_is_not_looked_at(node: OnNode, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at_often(monkeypatch)
    node.limit(1.0)
    node.order(1)
    eventually(lambda: node.agent._activity is not None, "the first look")
    node.limit(None)
    eventually(lambda: node.agent._activity is None, "the end of the looks")


# A check whose one process writes its notes and then waits to be told how to end.
CHECK = """
import json, pathlib, sys, time
folder = pathlib.Path(sys.argv[sys.argv.index("--folder") + 1])
print("Rendezvous'ing worker group\\nRendezvous complete for workers", flush=True)
for local in (0, 1):
    notes = {"stage": "done", "torch": "2.15.0", "backend": "gloo", "matmul_tflops": 0.25, "network_gbs": 1.5}
    (folder / f"process-{local}.json").write_text(json.dumps(notes))
time.sleep(600)
"""
HANGING = CHECK.replace('"done"', '"multiply matrices"')


class InCheck:
    """A node that the controller has checked."""

    def __init__(self, node: OnNode, monkeypatch: pytest.MonkeyPatch) -> None:
        self.node = node
        program = node.folder / "check.py"
        monkeypatch.setattr(check_module, "BASE", node.folder)
        monkeypatch.setattr(
            check_module, "torchrun_command", lambda **given: [sys.executable, str(program), *given["job"]]
        )
        self.program = program

    def order(self, number: int, program: str, minutes: float = 3.0) -> None:
        self.program.write_text(program)
        limits = self.node.record.limits.model_copy(update={"verify_minutes": minutes})
        self.node.agent.run = self.node.record.model_copy(update={"limits": limits})
        check = Check(number=number, nodes=("i-1",), ordered=0.0)
        self.write(Control(check=check, checks=number))

    def write(self, control: Control) -> None:
        self.node.cluster.data.write(self.node.layout.control, control.model_dump_json().encode())

    def told(self) -> list[VerificationEvent]:
        return [one for one in self.node.events() if isinstance(one, VerificationEvent)]

    def tells(self, count: int = 1) -> VerificationEvent:
        eventually(lambda: len(self.told()) == count, "the agent's word on a check")
        return self.told()[-1]

    def running(self) -> int:
        eventually(lambda: self.node.agent._check is not None, "the check")
        check = self.node.agent._check
        assert check is not None
        eventually(lambda: any((self.node.folder / "runs").rglob("process-1.json")), "its processes")
        return check.process


@pytest.fixture
def checked(node: OnNode, monkeypatch: pytest.MonkeyPatch) -> InCheck:
    return InCheck(node, monkeypatch)


def test_a_check_that_is_through_is_told_though_torchrun_waits_for_others(checked: InCheck) -> None:
    checked.order(1, CHECK)
    told = checked.tells()
    assert (told.check, told.faults, told.absent, told.stuck) == (1, (), (), None)
    assert (told.measured.matmul_tflops, told.measured.network_gbs, told.measured.network) == (0.25, 1.5, "gloo")
    eventually(lambda: checked.node.agent._check is None, "the end of the check")


def test_a_check_that_hangs_is_cut_at_its_deadline_and_what_was_measured_told(checked: InCheck) -> None:
    checked.order(1, HANGING, minutes=2 / 60)
    told = checked.tells()
    assert [fault.kind for fault in told.faults] == ["hung", "hung"]
    assert told.measured.torch == "2.15.0"


def test_a_check_that_can_not_begin_is_told_as_the_nodes_fault(checked: InCheck) -> None:
    folder = checked.node.folder / "runs" / checked.node.record.run
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "check-0001").touch()
    checked.order(1, CHECK)
    (fault,) = checked.tells().faults
    assert fault.text.startswith("the check can't begin: NotADirectoryError")


def test_a_check_that_nobody_waits_for_is_ended_and_not_told(checked: InCheck) -> None:
    checked.order(1, HANGING)
    process = checked.running()
    checked.write(Control(checks=1))
    eventually(lambda: not psutil.pid_exists(process), "the end of the check")
    assert checked.told() == []


def test_an_attempt_follows_a_check(checked: InCheck) -> None:
    checked.order(1, CHECK)
    checked.tells()
    checked.write(Control(checks=1, attempt=1, nodes=("i-1",)))
    checked.node.tells("workers_up 1")


def test_a_check_ends_what_is_left_of_a_lost_attempt(checked: InCheck) -> None:
    """A rank that waits for a peer that went away may not know that yet."""
    checked.node.order(1)
    checked.node.tells("workers_up 1")
    checked.order(1, CHECK)
    assert checked.tells().faults == ()
    assert not (checked.node.folder / "bundle/saved").exists()


def test_an_agent_started_again_tells_the_check_as_failed(checked: InCheck) -> None:
    checked.order(1, HANGING)
    checked.running()
    check, checked.node.agent._check = checked.node.agent._check, None
    assert check is not None
    checked.node.die()
    check.kill()
    (fault,) = checked.tells().faults
    assert fault.text == "the node's agent ended in the middle of the check"


def test_the_agents_end_ends_the_check(checked: InCheck) -> None:
    checked.order(1, HANGING)
    process = checked.running()
    checked.node.close()
    assert not psutil.pid_exists(process)
