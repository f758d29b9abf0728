"""The latest state of each agent of one run, and the failures of ranks."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from trainyard.models.events import AgentEvent, RankFailure


@dataclass
class NodeStates:
    """States of the agents of one run.

    `latest`: node -> its latest state. `failures`: attempt -> (node, failure) of its ranks. `boots`: node -> its newest
    boot. `repaired`: node -> number of the last repair that its agent has completed.
    """

    latest: dict[str, AgentEvent] = field(default_factory=dict)
    failures: dict[int, list[tuple[str, RankFailure]]] = field(default_factory=dict)
    boots: dict[str, str] = field(default_factory=dict)
    repaired: dict[str, int] = field(default_factory=dict)

    def update(self, event: AgentEvent) -> None:
        """Add an event of an agent. Its order is that of its sequence number, not of its time.

        A restarted agent reports that it is ready, which does not replace its state in an attempt.
        """
        self.boots[event.instance] = max(self.boots.get(event.instance, ""), event.boot)
        if event.state == "repaired":
            self.repaired[event.instance] = event.attempt
            return
        known = self.latest.get(event.instance)
        if known is None or _order(event) >= _order(known):
            self.latest[event.instance] = event
        self.failures.setdefault(event.attempt, []).extend((event.instance, failure) for failure in event.failures)

    def select_nodes(self, members: Iterable[str], count: int) -> tuple[str, ...] | None:
        """Return the nodes of the next attempt: `count` ready members of the groups; None if fewer are ready."""
        ready = self.ready_nodes(members)
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
        """Return the nodes whose workers failed in the attempt."""
        return [node for node in nodes if self._state(node, attempt) == "workers_failed"]

    def unreported_nodes(self, attempt: int, nodes: Iterable[str]) -> list[str]:
        """Return the nodes that have not reported the end of their workers in the attempt."""
        return [node for node in nodes if self._state(node, attempt) not in {"workers_failed", "workers_done"}]

    def _is_drained(self, node: str) -> bool:
        return node in self.latest and self.latest[node].state == "drained"

    def _state(self, node: str, attempt: int) -> str | None:
        event = self.latest.get(node)
        return event.state if event is not None and event.attempt == attempt else None


def _order(event: AgentEvent) -> tuple[int, str, int]:
    return event.attempt, event.boot, event.sequence
