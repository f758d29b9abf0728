"""The latest state of each agent of one run, and the failures of ranks."""

from collections.abc import Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Literal

from trainyard.models.connection import Heartbeat
from trainyard.models.events import AgentEvent, RankFailure
from trainyard.models.node_health import HealthFinding, NodeHealth

REPAIR_ACTIONS: tuple[Literal["reset", "reboot", "replace"], ...] = ("reset", "reboot", "replace")


@dataclass
class NodeStates:
    """States of the agents of one run.

    `latest`: node -> its latest state. `failures`: attempt -> (node, failure) of its ranks. `boots`: node -> its newest
    boot. `health`: node -> its newest health. `repaired`: node -> its last completed repair.
    """

    latest: dict[str, AgentEvent] = field(default_factory=dict)
    failures: dict[int, list[tuple[str, RankFailure]]] = field(default_factory=dict)
    boots: dict[str, str] = field(default_factory=dict)
    health: dict[str, NodeHealth] = field(default_factory=dict)
    repaired: dict[str, int] = field(default_factory=dict)
    _newest: dict[str, tuple[str, int]] = field(default_factory=dict)  # node -> boot and sequence of its health

    def update(self, event: AgentEvent) -> None:
        """Add an event of an agent. The newest has the highest attempt, boot and sequence number, not the latest time.

        A restarted agent reports that it is ready, which does not replace its state in an attempt.
        """
        self._update_health(event.instance, event.boot, event.sequence, event.health)
        if event.state == "repaired":
            self.repaired[event.instance] = event.attempt
            return
        known = self.latest.get(event.instance)
        if known is None or _order(event) >= _order(known):
            self.latest[event.instance] = event
        self.failures.setdefault(event.attempt, []).extend((event.instance, failure) for failure in event.failures)

    def update_heartbeats(self, heartbeats: Iterable[Heartbeat]) -> None:
        """Add the newest heartbeat of each node."""
        for each in heartbeats:
            self._update_health(each.instance, each.boot, each.sequence, each.health)

    def _update_health(self, node: str, boot: str, sequence: int, health: NodeHealth) -> None:
        if (boot, sequence) >= self._newest.get(node, ("", 0)):
            self._newest[node], self.boots[node], self.health[node] = (boot, sequence), boot, health

    def hardware_findings(self, nodes: Collection[str]) -> dict[str, list[HealthFinding]]:
        """Return node -> its findings that need an action, for the nodes that have any.

        What all of several nodes have in common is no fault of a node, but of their image or instance type.
        """
        needed = {
            node: [each for each in self.health.get(node, NodeHealth()).findings if each.action in REPAIR_ACTIONS]
            for node in nodes
        }
        rules = [{each.rule for each in findings} for findings in needed.values()]
        common = set.intersection(*rules) if len(rules) > 1 else set()
        specific = {node: [each for each in findings if each.rule not in common] for node, findings in needed.items()}
        return {node: findings for node, findings in specific.items() if findings}

    def select_nodes(
        self, members: Iterable[str], count: int, preferred: Sequence[AbstractSet[str]] = ()
    ) -> tuple[str, ...] | None:
        """Return the nodes of the next attempt: `count` ready members of the groups; None if fewer are ready.

        `preferred`: sets of nodes, in descending order of preference.
        """
        ready = sorted(self.ready_nodes(members), key=lambda node: (*(node not in nodes for nodes in preferred), node))
        return tuple(ready[:count]) if len(ready) >= count else None

    def ready_nodes(self, members: Iterable[str]) -> list[str]:
        """Return the members of the groups whose agents have reported and are not drained, sorted."""
        return sorted(node for node in set(members) & self.latest.keys() if not self._is_drained(node))

    def all_have_state(self, state: str, attempt: int, nodes: Iterable[str]) -> bool:
        """Return whether every node is in that state of that attempt."""
        return all(self._state(node, attempt) == state for node in nodes)

    def find_departed_nodes(self, nodes: Iterable[str], members: Iterable[str]) -> list[str]:
        """Return the nodes that are not members of the groups any more, or are drained.

        A node reports a spot interruption before its group removes it.
        """
        present = set(members)
        return [node for node in nodes if node not in present or self._is_drained(node)]

    def failed_nodes(self, attempt: int, nodes: Iterable[str]) -> list[str]:
        """Return the nodes on which a rank failed in the attempt, also while the other ranks of the node still run."""
        return [node for node in nodes if self._state(node, attempt) in {"rank_failed", "workers_failed"}]

    def unreported_nodes(self, attempt: int, nodes: Iterable[str]) -> list[str]:
        """Return the nodes that have not reported the end of their workers in the attempt."""
        return [node for node in nodes if self._state(node, attempt) not in {"workers_failed", "workers_done"}]

    def drained_nodes(self, nodes: Iterable[str]) -> set[str]:
        """Return those of the nodes that are drained."""
        return {node for node in nodes if self._is_drained(node)}

    def _is_drained(self, node: str) -> bool:
        return node in self.latest and self.latest[node].state == "drained"

    def _state(self, node: str, attempt: int) -> str | None:
        event = self.latest.get(node)
        return event.state if event is not None and event.attempt == attempt else None


def _order(event: AgentEvent) -> tuple[int, str, int]:
    return event.attempt, event.boot, event.sequence
