"""A node with its agent in a thread of the process of the tests."""

import sys
import threading
from pathlib import Path

import pytest

from tests import clusters
from tests.conftest import REGION
from tests.polling import eventually
from trainyard.models.events import AgentEvent, HealthCheckEvent, NodeEvent
from trainyard.models.layout import RunLayout
from trainyard.models.manifest import Archive
from trainyard.models.run import Control, HealthCheckRequest, Master
from trainyard.models.streams import Cursor, node_events
from trainyard.node import identity
from trainyard.node.agent import agent as agent_module
from trainyard.node.agent import attempt as attempt_module
from trainyard.node.agent import health_check as health_check_module
from trainyard.node.agent import job_container as job_container_module
from trainyard.node.agent import processes as processes_module
from trainyard.node.agent import state as state_module
from trainyard.node.agent.agent import Agent
from trainyard.node.agent.attempt import AttemptTorchrun
from trainyard.node.agent.drain import Drain
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


class LostGpu:
    """A sensor of a node whose fourth GPU has fallen off the bus."""

    name, interval_seconds = "kernel log", 60.0

    def read(self) -> list[Reading]:
        return [Reading(GPU_LOST, "GPU 3", "Xid 79: GPU has fallen off the bus.", 1.0)]

    def close(self) -> None:
        """Nothing is open."""


class NodeWithAgent:
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
        for module in (attempt_module, job_container_module, processes_module, state_module):
            monkeypatch.setattr(module, "BASE", folder)
        for module in (attempt_module, health_check_module):
            monkeypatch.setattr(module, "find_job_user", lambda: None)  # the job runs as the user of the tests
        monkeypatch.setattr(attempt_module, "MEMORY", folder / "memory")
        monkeypatch.setattr(identity, "_CONFIGURED", folder / "configured")
        monkeypatch.setattr(agent_module, "POLL_SECONDS", 0.05)
        monkeypatch.setattr(agent_module, "PORT", 0)  # of the credentials: tests run in parallel
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
        node_settings = manifest.node.model_copy(update={"package_index": str(index), "venv": sys.prefix})
        self.agent.run = self.record.model_copy(update={"job": job})
        self.agent.manifest = manifest.model_copy(update={"node": node_settings})

    def log(self, name: str) -> str:
        """Content of a log of attempt 1 in S3."""
        keys = [key for key in self.cluster.data.keys(self.layout.logs) if f"/0001-{name}-" in key]
        return b"".join(map(self.cluster.data.read, keys)).decode()

    def wait_for(self, state: str) -> None:
        eventually(lambda: state in self.reported(), f"the state {state!r}")

    def work_folder(self) -> Path:
        """Folder in which the job runs: the bundle, or a copy of the job's sources."""
        if self.agent.run.job.source is None:
            return self.folder / "bundle"
        return self.folder / "runs" / self.record.run / "attempt-0001/work"

    def finish(self, code: int) -> None:
        eventually(self.work_folder().exists, "the folder of the job")
        (self.work_folder() / "done").write_text(str(code))

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


class HealthCheckNode:
    """A node for which the test requests health checks."""

    def __init__(self, node: NodeWithAgent, monkeypatch: pytest.MonkeyPatch) -> None:
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
