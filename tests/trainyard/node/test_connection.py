"""The connection between an agent and the controller: a real server and client on loopback."""

import ssl
import time
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from rehearsal.aws.process import EmulatedAws
from tests.clusters import Cluster, create_cluster, event_fields
from tests.conftest import REGION
from tests.polling import eventually
from trainyard.models.connection import ControllerEndpoint, Heartbeat
from trainyard.models.events import AgentEvent
from trainyard.models.layout import CONTROLLER_ENDPOINT, RunLayout
from trainyard.models.run import Control
from trainyard.node.agent import connection as connection_module
from trainyard.node.agent.connection import HeadConnection
from trainyard.node.controller.agent_server import AgentServer
from trainyard.node.identity import Node
from trainyard.node.sequence import next_sequence

RUN = "run-1"
HEAD = Node(role="head", instance="i-head", address="127.0.0.1", boot="0001", region=REGION, manifest_uri="", bundle="")


def heartbeat(instance: str = "i-1") -> Heartbeat:
    return Heartbeat(instance=instance, boot="0001", sequence=next_sequence(), run=RUN, attempt=1)


def agent_event(state: str, sequence: int) -> AgentEvent:
    fields: dict[str, Any] = {**event_fields("i-1", "worker"), "run": RUN, "attempt": 1, "address": "127.0.0.1"}
    return AgentEvent.model_validate({**fields, "state": state, "sequence": sequence})


@pytest.fixture
def cluster(account: EmulatedAws) -> Cluster:
    return create_cluster(REGION)


@pytest.fixture
def server(cluster: Cluster) -> Iterator[AgentServer]:
    server = AgentServer(HEAD, port=0)
    server.start(cluster.staging)
    yield server
    server.close()


@pytest.fixture
def connection(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[HeadConnection]:
    monkeypatch.setattr(connection_module, "RETRY_SECONDS", (0.05, 0.1))
    monkeypatch.setattr(connection_module, "HEARTBEAT_SECONDS", 0.1)
    connection = HeadConnection(cluster.staging, cluster.data, heartbeat)
    connection.start()
    yield connection
    connection.close()


def test_heartbeats_arrive_again_and_again(server: AgentServer, connection: HeadConnection) -> None:
    eventually(lambda: "i-1" in server.heartbeats(), "a heartbeat")
    first = server.heartbeats()["i-1"]
    eventually(lambda: server.heartbeats()["i-1"].heartbeat.sequence > first.heartbeat.sequence, "the next heartbeat")
    assert server.connected_nodes() == {"i-1"}


def test_requests_reach_agents_that_are_connected_and_that_connect_later(
    server: AgentServer, connection: HeadConnection, cluster: Cluster
) -> None:
    eventually(lambda: bool(server.connected_nodes()), "the connection")
    server.publish(RUN, Control(attempt=3, newest_checkpoint="step-1"))  # only the controller needs it
    assert connection.changed.wait(10)
    assert connection.control(RUN) == Control(attempt=3)
    assert connection.control("another") is None
    later = HeadConnection(cluster.staging, cluster.data, lambda: heartbeat("i-2"))
    later.start()
    eventually(lambda: later.control(RUN) == Control(attempt=3), "the requests")
    later.close()


def test_event_arrives_at_once_and_wakes_the_controller(server: AgentServer, connection: HeadConnection) -> None:
    eventually(lambda: bool(server.connected_nodes()), "the connection")
    server.wait(0.0)
    started_at = time.monotonic()
    connection.send(agent_event("workers_failed", 1))
    server.wait(10)
    assert [event.sequence for event in server.take_events()] == [1]
    assert time.monotonic() < started_at + 5


def test_a_connection_reports_for_one_node_only(server: AgentServer, connection: HeadConnection) -> None:
    eventually(lambda: bool(server.connected_nodes()), "the connection")
    other = agent_event("drained", 1).model_copy(update={"instance": "i-2"})
    connection.send(other, repeat=False)
    connection.send(agent_event("ready", 2))  # repeated on the next connection
    received: list[str] = []

    def has_arrived() -> bool:
        received.extend(event.instance for event in server.take_events())
        return bool(received)

    eventually(has_arrived, "the event on the next connection")
    assert set(received) == {"i-1"}


def test_events_are_sent_again_to_a_new_controller(
    server: AgentServer, connection: HeadConnection, cluster: Cluster
) -> None:
    connection.send(agent_event("ready", 1))
    eventually(lambda: bool(server.connected_nodes()), "the connection")
    server.close()
    connection.send(agent_event("workers_up", 2))
    eventually(lambda: connection.control(RUN) is None, "the end of the connection")
    successor = AgentServer(HEAD, port=0)
    successor.start(cluster.staging)
    received: set[int] = set()

    def has_received_both() -> bool:
        received.update(event.sequence for event in successor.take_events())
        return received == {1, 2}

    eventually(has_received_both, "both events")
    successor.close()


def test_server_knows_whether_a_later_one_replaces_it(server: AgentServer, cluster: Cluster) -> None:
    assert server.is_published(cluster.staging)
    successor = AgentServer(HEAD, port=0)
    successor.start(cluster.staging)
    assert (server.is_published(cluster.staging), successor.is_published(cluster.staging)) == (False, True)
    successor.close()


def test_agent_without_a_connection_writes_its_heartbeats_to_s3(cluster: Cluster, connection: HeadConnection) -> None:
    key = RunLayout(RUN).heartbeat("i-1")
    eventually(lambda: cluster.data.find(key) is not None, "a heartbeat in S3")
    first = cluster.data.read(key)
    eventually(lambda: cluster.data.read(key) != first, "the next heartbeat in S3")


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer " + "x" * 43}])
def test_client_without_the_token_is_refused(server: AgentServer, cluster: Cluster, headers: dict[str, str]) -> None:
    endpoint = ControllerEndpoint.model_validate_json(cluster.staging.read(CONTROLLER_ENDPOINT))
    context = ssl.create_default_context(cadata=endpoint.certificate)
    uri = f"wss://{endpoint.address}:{endpoint.port}"
    with pytest.raises(InvalidStatus, match="401"):
        connect(uri, ssl=context, additional_headers=headers, proxy=None)


def test_server_with_another_certificate_is_refused(server: AgentServer, cluster: Cluster) -> None:
    endpoint = ControllerEndpoint.model_validate_json(cluster.staging.read(CONTROLLER_ENDPOINT))
    other = AgentServer(HEAD, port=0)
    context = ssl.create_default_context(cadata=other._certificate)
    with pytest.raises(ssl.SSLCertVerificationError):
        connect(f"wss://{endpoint.address}:{endpoint.port}", ssl=context, proxy=None)


def test_message_that_is_not_valid_ends_only_its_connection(server: AgentServer, cluster: Cluster) -> None:
    endpoint = ControllerEndpoint.model_validate_json(cluster.staging.read(CONTROLLER_ENDPOINT))
    context = ssl.create_default_context(cadata=endpoint.certificate)
    headers = {"Authorization": f"Bearer {endpoint.token}"}
    uri = f"wss://{endpoint.address}:{endpoint.port}"
    with connect(uri, ssl=context, additional_headers=headers, proxy=None) as client:
        client.send("not JSON")
        eventually(lambda: client.protocol.state.name == "CLOSED", "the end of the connection")
    with connect(uri, ssl=context, additional_headers=headers, proxy=None) as client:
        client.send(heartbeat().model_dump_json())
        eventually(lambda: "i-1" in server.connected_nodes(), "the connection")
