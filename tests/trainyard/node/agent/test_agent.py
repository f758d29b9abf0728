"""The agent of a node: requests of the controller, drain, restart after a kill, and health checks."""

import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from rehearsal.aws.process import EmulatedAws
from tests import clusters
from tests.conftest import REGION
from tests.polling import eventually
from trainyard.models.events import ActivityEvent, AgentEvent, HealthCheckEvent, NodeEvent
from trainyard.models.layout import RunLayout
from trainyard.models.manifest import Archive
from trainyard.models.run import Control, HealthCheckRequest, Master
from trainyard.models.streams import Cursor, node_events
from trainyard.node import identity
from trainyard.node.agent import activity
from trainyard.node.agent import agent as agent_module
from trainyard.node.agent import attempt as attempt_module
from trainyard.node.agent import health_check as health_check_module
from trainyard.node.agent import state as state_module
from trainyard.node.agent.agent import Agent
from trainyard.node.agent.attempt import RANK_EXIT_SECONDS, TORCHRUN_EXIT_SECONDS, AttemptTorchrun
from trainyard.node.agent.drain import Drain
from trainyard.node.agent.job_process import EXIT_FILE
from trainyard.node.agent.job_unit import JobUnit
from trainyard.node.health.monitor import HealthMonitor
from trainyard.node.health.rules import GPU_LOST
from trainyard.node.health.sensor import Reading

MASTER = Master(address="127.0.0.1", port=20000)
# A job that ends with the exit code in the file `done`, and saves a checkpoint on request.
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


# torchrun with one rank that ignores SIGTERM, as a rank does whose main thread hangs in NCCL.
HANGING_RANK = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
TORCHRUN_WITH_HANGING_RANK = f"""
import os, subprocess, sys
os.makedirs(os.environ["METRICS_DIR"] + "/0")
with open(os.environ["METRICS_DIR"] + "/0/stderr.log", "w") as stderr:
    rank = subprocess.Popen([sys.executable, "-c", {HANGING_RANK!r}], stderr=stderr)
raise SystemExit(1 if rank.wait() else 0)
"""


class LostGpu:
    """A sensor of a node whose fourth GPU has fallen off the bus."""

    name, interval_seconds = "kernel log", 60.0

    def read(self) -> list[Reading]:
        return [Reading(GPU_LOST, "GPU 3", "Xid 79: GPU has fallen off the bus.", 1.0)]

    def close(self) -> None:
        """Nothing is open."""


class OnNode:
    """One node with its agent in a thread; `python job.py` replaces torchrun."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        (folder / "bundle").mkdir()
        (folder / "job.py").write_text(JOB)
        self.cluster = clusters.create_cluster(REGION)
        self.record = self.cluster.create_run_record()
        self.layout = RunLayout(self.record.run)
        self.node = clusters.worker_identity(REGION, folder / "bundle")
        self.drain_cause: str | None = None
        for module in (attempt_module, state_module):
            monkeypatch.setattr(module, "BASE", folder)
        monkeypatch.setattr(attempt_module, "MEMORY", folder / "memory")
        monkeypatch.setattr(identity, "_CONFIGURED", folder / "configured")
        monkeypatch.setattr(agent_module, "POLL_SECONDS", 0.05)
        monkeypatch.setattr(Drain, "cause", lambda _: self.drain_cause)
        monkeypatch.setattr(attempt_module, "torchrun_command", lambda **_: [sys.executable, str(folder / "job.py")])
        monkeypatch.setattr(AttemptTorchrun, "are_workers_up", lambda _: True)
        self.start_agent()

    def start_agent(self) -> None:
        self.health = HealthMonitor((LostGpu(),))
        self.agent = Agent(self.node, self.cluster.manifest, self.record, health=self.health)
        self.thread = threading.Thread(target=self.agent.serve)
        self.thread.start()

    def request(
        self,
        attempt: int,
        stop: bool = False,
        save_checkpoint: bool = False,
        requests: int = 0,
        nodes: tuple[str, ...] = ("i-1",),
        aborted: int = 0,
    ) -> None:
        control = Control(
            attempt=attempt,
            nodes=nodes,
            master=MASTER,
            stop=stop,
            save_checkpoint=save_checkpoint,
            checkpoint_requests=requests,
            aborted_attempt=aborted,
        )
        self.cluster.data.write(self.layout.control, control.model_dump_json().encode())

    def events(self) -> list[NodeEvent]:
        return list(node_events(Cursor(self.cluster.data, self.layout.events)))

    def reported(self) -> list[str]:
        return [f"{event.state} {event.attempt}" for event in self.events() if isinstance(event, AgentEvent)]

    def set_idle_timeout(self, idle_timeout_minutes: float | None) -> None:
        """Change the run record, as a launch does."""
        limits = self.record.limits.model_copy(update={"idle_timeout_minutes": idle_timeout_minutes})
        changed = self.record.model_copy(update={"limits": limits})
        self.cluster.data.write(self.layout.record, changed.model_dump_json().encode())

    def set_requirements(self, text: str) -> None:
        """Make the job a custom job with these requirements and an empty package index."""
        source, index = self.folder / "job" / ("0" * 64), self.folder / "index"
        source.parent.mkdir()
        (self.folder / "bundle").rename(source)
        index.mkdir()
        (source / "requirements.txt").write_text(text)
        (self.folder / "bundle").symlink_to(source)
        archive = Archive(uri="s3://bucket/job.tar", sha256="0" * 64)
        job = self.record.job.model_copy(update={"source": archive, "command": ("train.py",), "train": None})
        manifest = self.agent.manifest
        node_settings = manifest.node.model_copy(update={"package_index": str(index)})
        self.agent.run = self.record.model_copy(update={"job": job})
        self.agent.manifest = manifest.model_copy(update={"node": node_settings})

    def log(self, name: str) -> str:
        """Content of a log of attempt 1 in S3."""
        keys = [key for key in self.cluster.data.keys(self.layout.logs) if f"/0001-{name}-" in key]
        return b"".join(map(self.cluster.data.read, keys)).decode()

    def wait_for(self, state: str) -> None:
        eventually(lambda: state in self.reported(), f"the state {state!r}")

    def finish(self, code: int) -> None:
        (self.folder / "bundle/done").write_text(str(code))

    def kill_agent(self) -> None:
        """Kill the agent without a last report, then start another, as systemd does."""
        self.stop_agent()
        self.start_agent()

    def stop_agent(self) -> None:
        """End the agent as SIGKILL does, which leaves its attempt alone."""
        self.agent._attempt = None
        self.close()

    def close(self) -> None:
        self.agent.stop_requested.set()
        self.thread.join()

    def unit(self) -> JobUnit:
        """The unit of the attempt that runs."""
        attempt = self.agent._attempt
        assert attempt is not None
        return attempt._unit


@pytest.fixture
def node(account: EmulatedAws, systemd: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OnNode]:
    node_under_test = OnNode(tmp_path, monkeypatch)
    yield node_under_test
    attempt = node_under_test.agent._attempt
    node_under_test.close()
    if attempt is not None:
        attempt.kill()


def test_ranks_of_an_attempt_that_failed_on_another_node_are_killed(node: OnNode) -> None:
    (node.folder / "job.py").write_text(TORCHRUN_WITH_HANGING_RANK)
    node.request(1)
    node.wait_for("workers_up 1")
    started_at = time.monotonic()
    node.request(1, aborted=1)
    node.wait_for("workers_failed 1")
    assert time.monotonic() - started_at < RANK_EXIT_SECONDS + TORCHRUN_EXIT_SECONDS


def test_hanging_ranks_are_killed_when_torchrun_ends_them(node: OnNode, monkeypatch: pytest.MonkeyPatch) -> None:
    (node.folder / "job.py").write_text(TORCHRUN_WITH_HANGING_RANK)
    monkeypatch.setattr(AttemptTorchrun, "output", lambda _: "Sending process 7 closing signal SIGTERM")
    node.request(1)
    node.wait_for("workers_failed 1")


def test_attempt_runs_and_its_end_is_reported(node: OnNode) -> None:
    node.wait_for("ready 0")
    node.request(1)
    node.wait_for("workers_up 1")
    node.finish(0)
    node.wait_for("workers_done 1")


def test_failed_attempt_is_reported_and_the_next_attempt_runs(node: OnNode) -> None:
    node.request(1)
    node.finish(3)
    node.wait_for("workers_failed 1")
    (node.folder / "bundle/done").unlink()
    node.request(2)
    node.wait_for("workers_up 2")


def test_event_of_a_failed_attempt_has_the_health_of_the_node(node: OnNode) -> None:
    node.wait_for("ready 0")
    node.health.start()
    eventually(lambda: bool(node.health.snapshot().findings), "the finding")
    node.request(1)
    node.finish(3)
    node.wait_for("workers_failed 1")
    node.health.stop()
    events = {event.state: event for event in node.events() if isinstance(event, AgentEvent)}
    assert events["ready"].health.findings == ()
    assert [(each.rule, each.device) for each in events["workers_failed"].health.findings] == [("gpu-lost", "GPU 3")]


def test_missing_requirement_is_reported_as_a_permanent_failure_of_the_node(node: OnNode) -> None:
    node.set_requirements("missing==1.0\n")
    node.request(1)
    node.wait_for("workers_failed 1")
    (event,) = (event for event in node.events() if isinstance(event, AgentEvent) and event.failures)
    assert event.failures[0].message.startswith("requirements.txt of the job: ")
    assert "missing" in event.failures[0].message
    assert (event.failures[0].local_rank, event.failures[0].is_permanent) == (None, True)


def test_logs_of_ranks_have_the_names_of_global_ranks(node: OnNode) -> None:
    node.request(1, nodes=("i-0", "i-1"))
    node.wait_for("workers_up 1")
    logs = node.folder / "runs" / node.record.run / "attempt-0001/logs/run_x/attempt_0/1"
    logs.mkdir(parents=True)
    (logs / "stdout.log").write_text("step 1\n")
    rank = node.record.processes_per_node + 1
    eventually(
        lambda: any(f"/0001-rank{rank}-stdout-" in key for key in node.cluster.data.keys(node.layout.logs)),
        f"the log of global rank {rank}",
    )


def test_job_with_satisfied_requirements_runs(node: OnNode) -> None:
    node.set_requirements("boto3\n")
    node.request(1)
    node.finish(0)
    node.wait_for("workers_done 1")


def test_superseded_attempt_is_stopped_without_checkpoint(node: OnNode) -> None:
    node.request(1)
    node.wait_for("workers_up 1")
    node.request(2)
    node.wait_for("workers_up 2")
    assert not any(state.endswith("failed 1") for state in node.reported())
    assert not (node.folder / "bundle/saved").exists()  # without its peers it cannot save


def test_attempt_saves_a_checkpoint_before_a_scale_out(node: OnNode) -> None:
    node.request(1)
    node.wait_for("workers_up 1")
    node.request(2, save_checkpoint=True)
    node.wait_for("workers_up 2")
    assert (node.folder / "bundle/saved").exists()


def test_requested_checkpoint_is_saved_and_the_attempt_continues(node: OnNode) -> None:
    node.request(1)
    node.wait_for("workers_up 1")
    node.request(1, requests=1)
    eventually((node.folder / "bundle/saved").exists, "the checkpoint")
    node.finish(0)
    node.wait_for("workers_done 1")


def test_only_requests_during_the_attempt_save_a_checkpoint(node: OnNode, monkeypatch: pytest.MonkeyPatch) -> None:
    handled: list[int] = []
    state_file = node.agent._state_file
    monkeypatch.setattr(node.agent, "_save_checkpoint", lambda _: handled.append(state_file.state.checkpoint_requests))
    node.request(1, requests=1)
    node.wait_for("workers_up 1")
    node.request(1, requests=2)
    eventually(lambda: 2 in handled, "the second request")
    assert handled == [2]


def test_stop_order_ends_the_workers_but_not_the_agent(node: OnNode) -> None:
    node.request(1)
    node.wait_for("workers_up 1")
    process = node.unit().process_id
    node.request(1, stop=True)
    eventually(lambda: not psutil.pid_exists(process), "the end of the workers")
    assert node.thread.is_alive()  # it must still drain the node


def test_copies_in_memory_end_with_their_run(node: OnNode) -> None:
    earlier, current = (node.folder / "memory" / name for name in ("earlier", node.record.run))
    for folder in (earlier, current):
        folder.mkdir(parents=True)
    node.kill_agent()
    node.request(attempt=1)
    node.wait_for("workers_up 1")
    assert (earlier.exists(), current.exists()) == (False, True)
    node.request(attempt=1, stop=True)
    node.wait_for("stopped 1")
    assert not current.exists()


def test_stop_order_with_save_saves_a_checkpoint(node: OnNode) -> None:
    node.request(1)
    node.wait_for("workers_up 1")
    node.request(1, stop=True, save_checkpoint=True)
    eventually(lambda: node.agent._attempt is None, "the end of the workers")
    assert (node.folder / "bundle/saved").exists()


def test_job_without_checkpoint_requests_is_stopped_at_once(node: OnNode) -> None:
    node.request(1)
    node.wait_for("workers_up 1")
    node.agent.run = node.record.model_copy(update={"job": node.record.job.model_copy(update={"train": None})})
    node.request(1, stop=True, save_checkpoint=True)
    eventually(lambda: node.agent._attempt is None, "the end of the workers")
    assert not (node.folder / "bundle/saved").exists()


def test_attempt_continues_when_the_agent_is_killed(node: OnNode) -> None:
    node.request(1)
    node.wait_for("workers_up 1")
    process = node.unit().process_id
    node.kill_agent()
    eventually(lambda: node.agent._attempt is not None, "the second agent")
    assert node.unit().process_id == process
    node.finish(0)
    node.wait_for("workers_done 1")
    assert node.reported() == ["ready 0", "workers_up 1", "workers_done 1"]


def test_requested_checkpoint_is_saved_after_the_agent_was_killed(node: OnNode) -> None:
    node.request(1)
    node.wait_for("workers_up 1")
    node.kill_agent()
    node.request(1, requests=1)
    eventually((node.folder / "bundle/saved").exists, "the checkpoint")


@pytest.mark.parametrize(("code", "state"), [(0, "workers_done"), (3, "workers_failed")])
def test_attempt_that_ended_without_an_agent_is_reported(node: OnNode, code: int, state: str) -> None:
    node.request(1)
    node.wait_for("workers_up 1")
    attempt = node.folder / "runs" / node.record.run / "attempt-0001"
    node.stop_agent()
    node.finish(code)
    eventually((attempt / EXIT_FILE).exists, "the end of the attempt")
    node.start_agent()
    node.wait_for(f"{state} 1")


def test_attempt_in_a_killed_unit_is_reported_as_failed(node: OnNode) -> None:
    node.request(1)
    node.wait_for("workers_up 1")
    unit = node.unit()
    node.stop_agent()
    unit.kill()
    node.start_agent()
    node.wait_for("workers_failed 1")
    assert node.reported().count("workers_up 1") == 1


def test_unit_of_an_earlier_run_is_stopped(node: OnNode, tmp_path: Path) -> None:
    """The run may have ended while no agent ran."""
    node.stop_agent()
    folder = tmp_path / "earlier"
    folder.mkdir()
    earlier = JobUnit("earlier", 1, folder)
    earlier.start(["/bin/sleep", "600"], folder, {}, in_container=False)
    node.start_agent()
    eventually(lambda: earlier.exit_code() is not None, "the end of the unit")


def test_reboot_of_the_node_is_the_reason_of_a_failed_attempt(node: OnNode) -> None:
    node.request(1)
    node.wait_for("workers_up 1")
    unit = node.unit()
    node.stop_agent()
    unit.stop()
    node.node = node.node.model_copy(update={"boot": "0002"})
    node.start_agent()
    node.wait_for("workers_failed 1")
    (event,) = (event for event in node.events() if isinstance(event, AgentEvent) and event.failures)
    assert (event.failures[0].message, event.failures[0].local_rank) == ("the node rebooted", None)


def test_ranks_that_a_killed_agent_has_killed_have_no_failure_of_their_own(node: OnNode) -> None:
    node.request(1)
    node.wait_for("workers_up 1")
    node.agent._state_file.update(killed_ranks=(0,))
    report = "time : now\nrank : {0} (local_rank: {0})\nexitcode : -9\n"
    log = node.folder / "runs" / node.record.run / "attempt-0001/torchrun.log"
    node.kill_agent()
    with log.open("a") as file:
        file.write(report.format(0) + report.format(1))
    node.finish(1)
    node.wait_for("workers_failed 1")
    (event,) = (event for event in node.events() if isinstance(event, AgentEvent) and event.failures)
    assert [failure.local_rank for failure in event.failures] == [1]


def test_attempt_continues_when_the_service_stops(node: OnNode) -> None:
    node.request(1)
    node.wait_for("workers_up 1")
    process = node.unit().process_id
    node.close()
    node.start_agent()
    eventually(lambda: node.agent._attempt is not None, "the second agent")
    assert node.unit().process_id == process


@pytest.mark.parametrize("end_agent", [OnNode.stop_agent, OnNode.close], ids=["killed", "stopped"])
def test_logs_continue_after_the_agent_has_ended(node: OnNode, end_agent: Callable[[OnNode], None]) -> None:
    node.request(1)
    node.wait_for("workers_up 1")
    logs = node.folder / "runs" / node.record.run / "attempt-0001/logs/run_x/attempt_0/0"
    logs.mkdir(parents=True)
    with (logs / "stdout.log").open("a") as log:
        log.write("step 1\nst")
        log.flush()
        eventually(lambda: node.log("rank0-stdout") == "step 1\n", "the first line")
        end_agent(node)
        log.write("ep 2\n")
    node.start_agent()
    eventually(lambda: node.log("rank0-stdout") == "step 1\nstep 2\n", "the second line")


def test_agent_that_waits_for_a_checkpoint_reports_progress(node: OnNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the watchdog of systemd would restart it."""
    reported = threading.Event()
    monkeypatch.setattr(attempt_module, "report_progress", reported.set)
    (node.folder / "job.py").write_text("import time; time.sleep(600)")
    node.request(1)
    node.wait_for("workers_up 1")
    monkeypatch.setattr(agent_module, "INTERRUPTION_SECONDS", 0.1)
    node.request(1, requests=1)
    assert reported.wait(30)


def test_secrets_are_in_no_command_line_and_in_no_file(node: OnNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_module, "read_secrets", lambda *_: {"TOKEN": "top-secret"})
    node.request(1)
    node.wait_for("workers_up 1")
    runner = psutil.Process(node.unit().process_id)
    eventually(lambda: bool(runner.children()), "the job")
    (job,) = runner.children()
    assert job.environ()["TOKEN"] == "top-secret"
    assert "top-secret" not in " ".join([*runner.cmdline(), *job.cmdline(), *runner.environ().values()])
    files = [file for file in (node.folder / "runs").rglob("*") if file.is_file()]
    assert [file for file in files if b"top-secret" in file.read_bytes()] == []


def test_restarted_agent_does_not_repeat_reports(node: OnNode) -> None:
    node.request(1)
    node.finish(0)
    node.wait_for("workers_done 1")
    node.kill_agent()
    eventually(lambda: node.reported().count("ready 0") == 2, "the second agent")
    assert "workers_failed 1" not in node.reported()


def test_s3_outage_does_not_end_the_job(node: OnNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node.request(1)
    node.wait_for("workers_up 1")
    reached = threading.Event()

    def find(key: str) -> Any:
        reached.set()
        raise OSError("S3 is unavailable")

    with monkeypatch.context() as outage:
        outage.setattr(node.agent._data, "find", find)
        assert reached.wait(10)
    node.finish(0)
    node.wait_for("workers_done 1")


def test_drain_saves_a_checkpoint_and_completes_the_lifecycle_action(
    node: OnNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, str]] = []

    class Recorder:
        def complete_lifecycle_action(self, **keywords: Any) -> None:
            calls.append((keywords["LifecycleHookName"], keywords["InstanceId"]))

        def record_lifecycle_action_heartbeat(self, **keywords: Any) -> None:
            """The emulated account tests it."""

    monkeypatch.setattr(node.agent._drain, "_autoscaling", Recorder())
    node.request(1)
    node.wait_for("workers_up 1")
    node.drain_cause = "terminating"
    node.thread.join(60)
    assert not node.thread.is_alive()
    assert (node.folder / "bundle/saved").exists()
    assert "drained 1" in node.reported()
    assert calls == [(node.cluster.manifest.groups[0].lifecycle_hook, "i-1")]


def sample_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "SAMPLE_SECONDS", 0.2)
    monkeypatch.setattr(agent_module, "REPORT_SECONDS", 0.2)


def test_sleeping_job_is_reported_as_idle(node: OnNode, monkeypatch: pytest.MonkeyPatch) -> None:
    sample_often(monkeypatch)
    node.set_idle_timeout(1.0)
    node.request(1)

    def idle() -> bool:
        return any(isinstance(event, ActivityEvent) and event.idle_since is not None for event in node.events())

    eventually(idle, "the report that the job is idle")


def test_run_without_idle_limit_is_not_sampled(node: OnNode, monkeypatch: pytest.MonkeyPatch) -> None:
    sample_often(monkeypatch)
    node.set_idle_timeout(1.0)
    node.request(1)
    eventually(lambda: node.agent._activity is not None, "the first sample")
    node.set_idle_timeout(None)
    eventually(lambda: node.agent._activity is None, "the end of sampling")


# A health check where one program writes the reports of both processes and then hangs.
HEALTH_CHECK = """
import json, pathlib, sys, time
folder = pathlib.Path(sys.argv[sys.argv.index("--folder") + 1])
print("Rendezvous'ing worker group\\nRendezvous complete for workers", flush=True)
for local_rank in (0, 1):
    report = {"stage": "done", "torch": "2.15.0", "backend": "gloo", "matmul_tflops": 0.25, "network_gbs": 1.5}
    (folder / f"process-{local_rank}.json").write_text(json.dumps(report))
time.sleep(600)
"""
HANGING = HEALTH_CHECK.replace('"done"', '"multiply matrices"')


class HealthCheckNode:
    """A node for which the test requests health checks."""

    def __init__(self, node: OnNode, monkeypatch: pytest.MonkeyPatch) -> None:
        self.node = node
        program = node.folder / "health_check.py"
        monkeypatch.setattr(health_check_module, "BASE", node.folder)
        monkeypatch.setattr(
            health_check_module, "torchrun_command", lambda **keywords: [sys.executable, str(program), *keywords["job"]]
        )
        self.program = program

    def request(self, number: int, program: str, minutes: float = 3.0) -> None:
        self.program.write_text(program)
        limits = self.node.record.limits.model_copy(update={"health_check_timeout_minutes": minutes})
        self.node.agent.run = self.node.record.model_copy(update={"limits": limits})
        health_check = HealthCheckRequest(number=number, nodes=("i-1",), master=MASTER, requested_at=0.0)
        self.write(Control(health_check=health_check, health_check_count=number))

    def write(self, control: Control) -> None:
        self.node.cluster.data.write(self.node.layout.control, control.model_dump_json().encode())

    def reported(self) -> list[HealthCheckEvent]:
        return [event for event in self.node.events() if isinstance(event, HealthCheckEvent)]

    def wait_for(self, count: int = 1) -> HealthCheckEvent:
        eventually(lambda: len(self.reported()) == count, "the result of a health check")
        return self.reported()[-1]

    def process_id(self) -> int:
        eventually(lambda: self.node.agent._health_check is not None, "the health check")
        health_check = self.node.agent._health_check
        assert health_check is not None
        eventually(lambda: any((self.node.folder / "runs").rglob("process-1.json")), "the reports of the processes")
        return health_check.process_id


@pytest.fixture
def health_check_node(node: OnNode, monkeypatch: pytest.MonkeyPatch) -> HealthCheckNode:
    return HealthCheckNode(node, monkeypatch)


def test_complete_health_check_is_reported_while_torchrun_waits(health_check_node: HealthCheckNode) -> None:
    health_check_node.request(1, HEALTH_CHECK)
    reported = health_check_node.wait_for()
    assert (reported.number, reported.faults, reported.missing_peers, reported.incomplete_stage) == (1, (), (), None)
    assert (reported.measurements.matmul_tflops, reported.measurements.network_gbs, reported.measurements.network) == (
        0.25,
        1.5,
        "gloo",
    )
    eventually(lambda: health_check_node.node.agent._health_check is None, "the end of the health check")


def test_hung_health_check_is_stopped_at_the_deadline_and_reported(health_check_node: HealthCheckNode) -> None:
    health_check_node.request(1, HANGING, minutes=2 / 60)
    reported = health_check_node.wait_for()
    assert [fault.kind for fault in reported.faults] == ["hung", "hung"]
    assert reported.measurements.torch == "2.15.0"


def test_health_check_that_cannot_start_is_a_fault_of_the_node(health_check_node: HealthCheckNode) -> None:
    folder = health_check_node.node.folder / "runs" / health_check_node.node.record.run
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "check-0001").touch()
    health_check_node.request(1, HEALTH_CHECK)
    (fault,) = health_check_node.wait_for().faults
    assert fault.text.startswith("the health check cannot start: NotADirectoryError")


def test_cancelled_health_check_is_stopped_and_not_reported(health_check_node: HealthCheckNode) -> None:
    health_check_node.request(1, HANGING)
    process = health_check_node.process_id()
    health_check_node.write(Control(health_check_count=1))
    eventually(lambda: not psutil.pid_exists(process), "the end of the health check")
    assert health_check_node.reported() == []


def test_attempt_starts_after_a_health_check(health_check_node: HealthCheckNode) -> None:
    health_check_node.request(1, HEALTH_CHECK)
    health_check_node.wait_for()
    health_check_node.write(Control(health_check_count=1, attempt=1, nodes=("i-1",), master=MASTER))
    health_check_node.node.wait_for("workers_up 1")


def test_health_check_order_stops_a_lost_attempt(health_check_node: HealthCheckNode) -> None:
    """A rank that waits for a lost peer may not have noticed the loss."""
    health_check_node.node.request(1)
    health_check_node.node.wait_for("workers_up 1")
    health_check_node.request(1, HEALTH_CHECK)
    assert health_check_node.wait_for().faults == ()
    assert not (health_check_node.node.folder / "bundle/saved").exists()


def test_restarted_agent_reports_the_health_check_as_failed(health_check_node: HealthCheckNode) -> None:
    health_check_node.request(1, HANGING)
    health_check_node.process_id()
    health_check, health_check_node.node.agent._health_check = health_check_node.node.agent._health_check, None
    assert health_check is not None
    health_check_node.node.kill_agent()
    health_check.kill()
    (fault,) = health_check_node.wait_for().faults
    assert fault.text == "the agent of the node exited during the health check"


def test_stop_of_the_agent_ends_the_health_check(health_check_node: HealthCheckNode) -> None:
    health_check_node.request(1, HANGING)
    process = health_check_node.process_id()
    health_check_node.node.close()
    assert not psutil.pid_exists(process)


def test_metadata_service_is_not_called_at_each_fast_poll(node: OnNode, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[float] = []
    monkeypatch.setattr(Drain, "cause", lambda _: calls.append(time.monotonic()))
    monkeypatch.setattr(agent_module, "FAST_POLL_SECONDS", 0.01)
    node.request(1)
    node.wait_for("workers_up 1")
    eventually(lambda: len(calls) > 10, "calls of the metadata service")
    assert min(later - earlier for earlier, later in itertools.pairwise(calls)) >= agent_module.POLL_SECONDS
