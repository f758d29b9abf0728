"""An agent whose run has ended serves the run that a launch starts on its node."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rehearsal.aws.process import EmulatedAws
from tests import clusters
from tests.conftest import REGION
from tests.polling import eventually
from trainyard.models.events import AgentEvent
from trainyard.models.layout import CURRENT_RUN, RunLayout
from trainyard.models.run import Control, RunRecord
from trainyard.models.streams import Cursor, node_events
from trainyard.node import identity
from trainyard.node.agent import agent as agent_module
from trainyard.node.agent import state as state_module
from trainyard.node.agent.agent import Agent
from trainyard.node.agent.drain import Drain
from trainyard.node.agent.state import open_state_file


class KeptNode:
    """A node whose run has ended, with its agent in a thread."""

    def __init__(self) -> None:
        self.cluster = clusters.create_cluster(REGION)
        self.record = self.cluster.create_run_record()
        self.cluster.staging.write(CURRENT_RUN, self.record.model_dump_json().encode())
        self.stop = threading.Event()
        self.agent = self.start(self.record)

    def start(self, run: RunRecord) -> Agent:
        """Start an agent of this run."""
        node = clusters.worker_identity(REGION, "/bundle")
        agent = Agent(node, self.cluster.manifest, run, self.stop)
        self.thread = threading.Thread(target=agent.serve)
        self.thread.start()
        return agent

    def end_run(self, save_checkpoint: bool = False) -> None:
        control = Control(stop=True, save_checkpoint=save_checkpoint)
        self.cluster.data.write(RunLayout(self.record.run).control, control.model_dump_json().encode())

    def next_record(self, **fields: Any) -> RunRecord:
        """Write the record of a run that uses this node, and return it."""
        record = self.cluster.create_run_record().model_copy(update={"previous_run": self.record.run, **fields})
        self.cluster.staging.write(CURRENT_RUN, record.model_dump_json().encode())
        return record

    def reported(self, run: RunRecord) -> list[str]:
        events = node_events(Cursor(self.cluster.data, RunLayout(run.run).events))
        return [event.state for event in events if isinstance(event, AgentEvent)]

    def close(self) -> None:
        self.stop.set()
        self.thread.join()


@pytest.fixture
def node(account: EmulatedAws, systemd: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KeptNode]:
    monkeypatch.setattr(agent_module, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(state_module, "BASE", tmp_path)
    monkeypatch.setattr(identity, "_CONFIGURED", tmp_path / "configured")
    monkeypatch.setattr(Drain, "cause", lambda _: None)
    kept = KeptNode()
    yield kept
    kept.close()


def test_stopped_job_is_reported_once(node: KeptNode) -> None:
    node.end_run()
    eventually(lambda: "stopped" in node.reported(node.record), "the report")
    polled = threading.Event()
    polled.wait(0.3)
    assert node.reported(node.record).count("stopped") == 1


def test_agent_returns_for_the_next_run(node: KeptNode) -> None:
    node.end_run()
    eventually(lambda: "stopped" in node.reported(node.record), "the report")
    record = node.next_record()
    node.thread.join(20)
    assert node.agent.next_run == record


def test_agent_of_an_active_run_stays(node: KeptNode) -> None:
    node.next_record()
    eventually(lambda: "ready" in node.reported(node.record), "the report")
    node.thread.join(0.3)
    assert node.thread.is_alive()


def test_record_of_a_newer_version_is_read_after_the_refresh(node: KeptNode, monkeypatch: pytest.MonkeyPatch) -> None:
    refreshed: list[str] = []
    monkeypatch.setattr(agent_module, "refresh", lambda node, _: refreshed.append(node.instance))
    node.cluster.staging.write(CURRENT_RUN, b'{"run": "other", "unknown": 1}')
    node.end_run()
    eventually(lambda: refreshed == ["i-1"], "the refresh")
    assert node.agent.next_run is None


def test_node_is_ready_when_the_playbook_has_configured_it(node: KeptNode, monkeypatch: pytest.MonkeyPatch) -> None:
    refreshed: list[str] = []
    monkeypatch.setattr(agent_module, "refresh", lambda node, _: refreshed.append(node.instance))
    node.close()
    node.stop.clear()
    record = node.next_record(node_digest=node.cluster.manifest.node_digest())
    node.start(record)
    eventually(lambda: refreshed == ["i-1"], "the refresh")
    assert node.reported(record) == []
    identity.write_configured(node.cluster.manifest, None)
    eventually(lambda: node.reported(record) == ["ready"], "the report")


def test_node_is_ready_when_the_playbook_has_pulled_the_image_of_the_run(
    node: KeptNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested: list[RunRecord] = []
    monkeypatch.setattr(agent_module, "refresh", lambda _, run: requested.append(run))
    node.close()
    node.stop.clear()
    manifest, image = node.cluster.manifest, f"image@sha256:{'5' * 64}"
    identity.write_configured(manifest, f"image@sha256:{'4' * 64}")
    job = manifest.job.model_copy(update={"container": image})
    record = node.next_record(node_digest=manifest.node_digest(), job=job)
    node.start(record)
    eventually(lambda: requested == [record], "the request to run the playbook")
    assert node.reported(record) == []
    identity.write_configured(manifest, image)
    eventually(lambda: node.reported(record) == ["ready"], "the report")


def test_network_of_the_health_check_is_that_of_the_previous_run(node: KeptNode) -> None:
    open_state_file(node.record).update(network="AWS Libfabric")
    record = node.next_record()
    assert open_state_file(record).state.network == "AWS Libfabric"
