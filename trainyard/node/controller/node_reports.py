"""Events and heartbeats of the nodes of one run: from their connections, and from S3 for nodes without one.

The controller lists all events in S3 once, when it starts. Later it lists only events of nodes without a connection,
for each node every S3_POLL_SECONDS, so that the number of requests does not increase with the length of the run.
"""

import logging
from collections.abc import Iterable, Iterator
from typing import Protocol

from botocore.exceptions import BotoCoreError, ClientError
from pydantic import ValidationError

from trainyard.aws.s3 import Bucket
from trainyard.clock import Clock
from trainyard.models.connection import Heartbeat
from trainyard.models.events import NodeEvent
from trainyard.models.layout import RunLayout
from trainyard.models.run import Control
from trainyard.models.streams import Cursor, node_events
from trainyard.node.controller.agent_server import ReceivedHeartbeat

S3_POLL_SECONDS = 5.0
# A step of the controller lasts seconds at most, also when a thousand nodes start.
MAXIMUM_NODES_PER_POLL = 64
LOG = logging.getLogger("controller")


class AgentConnections(Protocol):
    """The connections of the agents, as the controller uses them: AgentServer, or a simulation."""

    def take_events(self) -> list[NodeEvent]:
        """Return the events since the last call."""

    def heartbeats(self) -> dict[str, ReceivedHeartbeat]:
        """Return instance -> its newest heartbeat on a connection."""

    def connected_nodes(self) -> frozenset[str]:
        """Return the instances whose agents are connected."""

    def publish(self, run: str, control: Control) -> None:
        """Send the requests to all agents."""


class NodeReports:
    """Reads the reports of the nodes of one run."""

    def __init__(self, connections: AgentConnections, data: Bucket, layout: RunLayout, clock: Clock) -> None:
        self._connections, self._data, self._layout, self._clock = connections, data, layout, clock
        self._cursor = Cursor(data, layout.events)
        self.has_read_all = False  # whether the events that S3 had at the start of this controller were yielded
        self._polled_at: dict[str, float] = {}
        self._handled: set[tuple[str, str, int]] = set()
        self._stored: dict[str, ReceivedHeartbeat] = {}

    def read_events(self, members: Iterable[str]) -> Iterator[NodeEvent]:
        """Yield each event once, those of a node in the order of their arrival. `members`: nodes of the run."""
        if not self.has_read_all:
            yield from filter(self._is_new, node_events(self._cursor))
            self.has_read_all = True
        yield from filter(self._is_new, self._connections.take_events())
        for node in self._due_nodes(members):
            try:
                yield from filter(self._is_new, node_events(self._cursor, node))
                self._read_heartbeat(node)
            except (BotoCoreError, ClientError, ValidationError) as error:  # the other nodes do not wait
                LOG.warning("the reports of %s cannot be read from S3: %s", node, error)

    def heartbeats(self) -> dict[str, ReceivedHeartbeat]:
        """Return instance -> its newest heartbeat, from a connection or S3."""
        received = self._connections.heartbeats()
        for node, stored in self._stored.items():
            if node not in received or stored.received_at > received[node].received_at:
                received[node] = stored
        return {node: each for node, each in received.items() if each.heartbeat.run == self._layout.run}

    def _is_new(self, event: NodeEvent) -> bool:
        """Return whether an event is of this run and was not handled before: a connection and S3 have the same events.

        Kept nodes report the end of the run before on the same connection.
        """
        if getattr(event, "run", self._layout.run) != self._layout.run:
            return False
        key = (event.instance, event.boot, event.sequence)
        if event.sequence and key in self._handled:
            return False
        self._handled.add(key)
        return True

    def _due_nodes(self, members: Iterable[str]) -> list[str]:
        """Return the nodes to poll in S3 now, those first that were not polled for the longest time."""
        now = self._clock.monotonic()
        without_connection = set(members) - self._connections.connected_nodes()
        self._polled_at = {node: self._polled_at.get(node, 0.0) for node in without_connection}
        due = [node for node, polled_at in self._polled_at.items() if now >= polled_at + S3_POLL_SECONDS]
        due = sorted(due, key=lambda node: (self._polled_at[node], node))[:MAXIMUM_NODES_PER_POLL]
        self._polled_at.update(dict.fromkeys(due, now))
        return due

    def _read_heartbeat(self, node: str) -> None:
        """Read the heartbeat of a node from S3. It has arrived now if it has changed."""
        content = self._data.find(self._layout.heartbeat(node))
        if content is None:
            return
        heartbeat = Heartbeat.model_validate_json(content)
        if heartbeat.instance != node:
            return
        known = self._stored.get(node)
        if known is None or known.heartbeat != heartbeat:
            self._stored[node] = ReceivedHeartbeat(heartbeat, self._clock.monotonic())
