"""What the controller concludes from what agents said: pure, so that each conclusion has a test."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from trainyard.models.events import AgentEvent, RankFailure
from trainyard.models.run import LostAttempt

VAIN_ATTEMPTS = 4

# What a rank says that failed only because a peer went away.
_PEER = re.compile(
    r"connection (closed|reset|refused|was)|closed by peer|broken pipe|remote process (exited|has failed)"
    r"|socket timeout|NCCL.*(remote|unhandled system)|DistBackendError|DistNetworkError|DistStoreError"
    r"|gloo.*timed? ?out|hung with the others",  # the last is the built-in trainer's (trainer/failures/watch.py)
    re.IGNORECASE,
)


@dataclass
class Fleet:
    """The agents' latest states of one run."""

    latest: dict[str, AgentEvent] = field(default_factory=dict)
    failures: dict[int, list[tuple[str, RankFailure]]] = field(default_factory=dict)

    def hear(self, event: AgentEvent) -> None:
        known = self.latest.get(event.instance)
        if known is None or (event.attempt, event.time) >= (known.attempt, known.time):
            self.latest[event.instance] = event
        self.failures.setdefault(event.attempt, []).extend((event.instance, one) for one in event.failures)

    def candidates(self, members: Iterable[str], wanted: int) -> tuple[str, ...] | None:
        """The nodes of a next attempt: `wanted` members of the group whose agents have spoken; None while too few."""
        ready = self.ready(members)
        return tuple(ready[:wanted]) if len(ready) >= wanted else None

    def ready(self, members: Iterable[str]) -> list[str]:
        """Members of the group whose agents have spoken, and not their last word."""
        return sorted(node for node in set(members) & self.latest.keys() if not self._has_left(node))

    def all_in(self, state: str, attempt: int, nodes: Iterable[str]) -> bool:
        """Whether every node of the attempt is in that state of that attempt."""
        return all(
            (event := self.latest.get(node)) is not None and event.attempt == attempt and event.state == state
            for node in nodes
        )

    def gone(self, nodes: Iterable[str], members: Iterable[str]) -> str | None:
        """The first node of the attempt that is no member of the group any more, or has said that it goes: of a spot
        interruption the group learns later."""
        present = set(members)
        return next((node for node in nodes if node not in present or self._has_left(node)), None)

    def failed(self, attempt: int, nodes: Iterable[str]) -> list[str]:
        """Nodes of the attempt whose workers failed in it."""
        return [node for node in nodes if self._state(node, attempt) == "workers_failed"]

    def silent(self, attempt: int, nodes: Iterable[str]) -> list[str]:
        """Nodes of the attempt that have not said yet how their workers ended in it."""
        return [node for node in nodes if self._state(node, attempt) not in {"workers_failed", "workers_done"}]

    def _has_left(self, node: str) -> bool:
        return node in self.latest and self.latest[node].state == "left"

    def _state(self, node: str, attempt: int) -> str | None:
        event = self.latest.get(node)
        return event.state if event is not None and event.attempt == attempt else None


def is_echo(message: str) -> bool:
    """Whether a rank says no more than that a peer went away."""
    return _PEER.search(message) is not None


def root_cause(failures: Iterable[tuple[str, RankFailure]]) -> tuple[str, RankFailure] | None:
    """The first failure that is not the echo of another one: not torchrun's own SIGTERM, not a peer gone away.

    None where there are echoes only: they say nothing of why, and their words (addresses, ports) differ each time.
    """
    own = [(node, one) for node, one in failures if one.exitcode != -15 and not is_echo(one.message)]
    return min(own, key=lambda item: (item[1].time, item[1].rank), default=None)


def same_way(before: RankFailure, after: RankFailure) -> bool:
    """Whether a rank failed as it did before: same rank, same kind of exception (its words may vary).

    The exit code says no more than the message does, and an exception may end in 1 or in an abort.
    """
    return (before.rank, before.message.split(":")[0]) == (after.rank, after.message.split(":")[0])


def account_for(
    earlier: LostAttempt | None,
    attempt: int,
    checkpoints: Iterable[str],
    cause: tuple[str, RankFailure] | None,
    blameless: bool,
) -> LostAttempt:
    """A lost attempt beside the one before. `blameless`: a node left, which says nothing against the job."""
    now = tuple(sorted(checkpoints))
    if blameless:
        vain = 0
    elif earlier is None or not set(now) <= set(earlier.checkpoints):
        vain = 1
    else:
        vain = earlier.in_vain + 1
    return LostAttempt(
        attempt=attempt,
        checkpoints=now,
        culprit=cause[0] if cause else None,
        failure=cause[1] if cause else None,
        in_vain=vain,
    )


def failed_for_good(earlier: LostAttempt | None, now: LostAttempt) -> str | None:
    """Why the run has failed for good; None while another attempt has sense."""
    before, after = earlier.failure if earlier else None, now.failure
    if now.in_vain >= 2 and before is not None and after is not None and same_way(before, after):
        return f"rank {after.rank} on {now.culprit} failed twice the same way: {after.message}"
    if now.in_vain >= VAIN_ATTEMPTS:
        last = f"last: rank {after.rank}: {after.message}" if after else "no rank said why"
        return f"{now.in_vain} attempts in a row failed and left no new checkpoint; {last}"
    return None
