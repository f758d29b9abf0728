"""Connections of agents without a network, for tests of the controller."""

from trainyard.clock import Clock
from trainyard.models.connection import Heartbeat
from trainyard.models.events import NodeEvent
from trainyard.models.node_health import NodeHealth
from trainyard.models.rank_progress import RankProgress
from trainyard.models.run import Control
from trainyard.node.controller.agent_server import ReceivedHeartbeat


class FakeConnections:
    """Connections whose messages a test adds. `published`: the requests, oldest first."""

    def __init__(self) -> None:
        self.events: list[NodeEvent] = []
        self.received: dict[str, ReceivedHeartbeat] = {}
        self.connected: set[str] = set()
        self.published: list[tuple[str, Control]] = []

    def add_heartbeat(
        self,
        node: str,
        run: str,
        at: float,
        step: int | None = None,
        attempt: int = 1,
        health: NodeHealth = NodeHealth(),  # noqa: B008 (immutable)
    ) -> None:
        """Add a heartbeat that arrives `at`, monotonic time."""
        ranks = () if step is None else (RankProgress(rank=0, step=step, time=at, step_seconds=1.0),)
        heartbeat = Heartbeat(
            instance=node, boot="0001", sequence=int(at * 1e9), run=run, attempt=attempt, ranks=ranks, health=health
        )
        self.received[node] = ReceivedHeartbeat(heartbeat, at)
        self.connected.add(node)

    def add_ranks(self, node: str, run: str, at: float, step: int, attempt: int, number: int) -> None:
        """Add a heartbeat of the node with this node rank and two ranks. Rank 3 is slow."""
        ranks = tuple(
            RankProgress(rank=rank, step=step, time=at, step_seconds=2.0, busy_seconds=2.0 if rank == 3 else 1.0)
            for rank in (2 * number, 2 * number + 1)
        )
        heartbeat = Heartbeat(instance=node, boot="0001", sequence=int(at * 1e9), run=run, attempt=attempt, ranks=ranks)
        self.received[node] = ReceivedHeartbeat(heartbeat, at)
        self.connected.add(node)

    def take_events(self) -> list[NodeEvent]:
        events, self.events = self.events, []
        return events

    def heartbeats(self) -> dict[str, ReceivedHeartbeat]:
        return dict(self.received)

    def connected_nodes(self) -> frozenset[str]:
        return frozenset(self.connected)

    def publish(self, run: str, control: Control) -> None:
        self.published.append((run, control))


class AdjustableClock(Clock):
    """The clock of this machine, moved forward by a test."""

    def __init__(self) -> None:
        self.offset = 0.0

    def advance(self, seconds: float) -> None:
        self.offset += seconds

    def time(self) -> float:
        return super().time() + self.offset

    def monotonic(self) -> float:
        return super().monotonic() + self.offset
