"""Failure analysis: the states of nodes, the cause of a failed attempt, and whether another attempt makes sense.

Without side effects, so that every rule has a test.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from trainyard.models.events import AgentEvent, RankFailure
from trainyard.models.failure_messages import HUNG_WITH_PEERS, PEER_LOST
from trainyard.models.run import FailedAttempt

MAXIMUM_ATTEMPTS_WITHOUT_PROGRESS = 4

# Error messages of a rank that failed only because another rank failed or became unreachable.
_PEER_FAILURE = re.compile(
    r"connection (closed|reset|refused|was)|closed by peer|broken pipe|remote process (exited|has failed)"
    r"|socket timeout|NCCL.*(remote|unhandled system)|DistBackendError|DistNetworkError|DistStoreError"
    r"|gloo.*timed? ?out"
    rf"|{re.escape(HUNG_WITH_PEERS)}|{re.escape(PEER_LOST)}",
    re.IGNORECASE,
)


@dataclass
class NodeStates:
    """Latest state of each agent of one run, and the failures of ranks by attempt."""

    latest: dict[str, AgentEvent] = field(default_factory=dict)
    failures: dict[int, list[tuple[str, RankFailure]]] = field(default_factory=dict)

    def update(self, event: AgentEvent) -> None:
        """Add an event of an agent."""
        known = self.latest.get(event.instance)
        if known is None or (event.attempt, event.time) >= (known.attempt, known.time):
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

    def find_lost_node(self, nodes: Iterable[str], members: Iterable[str]) -> str | None:
        """Return the first node that is not a member of the groups any more, or is drained.

        A node reports a spot interruption before its group removes it.
        """
        present = set(members)
        return next((node for node in nodes if node not in present or self._is_drained(node)), None)

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


def is_caused_by_peer(message: str) -> bool:
    """Return whether the error message of a rank only reports the failure of another rank."""
    return _PEER_FAILURE.search(message) is not None


def find_first_failure(failures: Iterable[tuple[str, RankFailure]]) -> tuple[str, RankFailure] | None:
    """Return (node, failure) of the earliest failure that is neither torchrun's SIGTERM nor caused by a peer.

    None if all failures were caused by others: their messages contain no cause, and differ by address and port.
    """
    causes = [
        (node, failure)
        for node, failure in failures
        if failure.exitcode != -15 and not is_caused_by_peer(failure.message)
    ]
    return min(causes, key=lambda cause: (cause[1].time, cause[1].rank), default=None)


def is_same_failure(before: RankFailure, after: RankFailure) -> bool:
    """Return whether two failures have the same rank and the same type of exception; its text may differ.

    The exit code is ignored: an exception may end in exit code 1 or in an abort. A failure before the ranks started
    may be that of any node.
    """
    if before.local_rank is None or after.local_rank is None:
        return (before.local_rank, before.message) == (after.local_rank, after.message)
    return (before.rank, before.message.split(":")[0]) == (after.rank, after.message.split(":")[0])


def create_failed_attempt(
    previous: FailedAttempt | None,
    attempt: int,
    checkpoints: Iterable[str],
    cause: tuple[str, RankFailure] | None,
    is_node_loss: bool,
) -> FailedAttempt:
    """Return the record of an attempt that failed or lost a node.

    `previous`: the failed attempt before. `is_node_loss`: a node left, which does not count against the job.
    """
    current = tuple(sorted(checkpoints))
    if is_node_loss:
        without_progress = 0
    elif previous is None or not set(current) <= set(previous.checkpoints):
        without_progress = 1
    else:
        without_progress = previous.attempts_without_progress + 1
    return FailedAttempt(
        attempt=attempt,
        checkpoints=current,
        failed_node=cause[0] if cause else None,
        failure=cause[1] if cause else None,
        attempts_without_progress=without_progress,
    )


def find_permanent_failure(previous: FailedAttempt | None, failed: FailedAttempt) -> str | None:
    """Return the reason why another attempt would fail again; None if another attempt makes sense."""
    before, after, count = previous.failure if previous else None, failed.failure, failed.attempts_without_progress
    where = after.describe(failed.failed_node) if after else ""
    if after is not None and after.is_permanent:
        return f"{where} failed: {after.message}"
    if count >= 2 and before is not None and after is not None and is_same_failure(before, after):
        return f"{where} failed twice the same way: {after.message}"
    if count >= MAXIMUM_ATTEMPTS_WITHOUT_PROGRESS:
        last = f"last failure: {where}: {after.message}" if after else "no rank reported a cause"
        return f"{count} consecutive attempts failed without a new checkpoint; {last}"
    return None
