"""What the controller concludes from what agents said: pure, so that each conclusion has a test."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from contract.events import AgentEvent, RankFailure

# What a rank says that failed only because a peer went away.
_PEER = re.compile(
    r"connection (closed|reset|refused|was)|closed by peer|broken pipe|remote process (exited|has failed)"
    r"|socket timeout|NCCL.*(remote|unhandled system)|DistBackendError|DistNetworkError|DistStoreError"
    r"|gloo.*timed? ?out",
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
        ready = sorted(set(members) & self.latest.keys())
        return tuple(ready[:wanted]) if len(ready) >= wanted else None

    def all_in(self, state: str, attempt: int, nodes: Iterable[str]) -> bool:
        """Whether every node of the attempt is in that state of that attempt."""
        return all(
            (event := self.latest.get(node)) is not None and event.attempt == attempt and event.state == state
            for node in nodes
        )

    def lost(self, attempt: int, nodes: Iterable[str], members: Iterable[str]) -> str | None:
        """Why the attempt can't end well: a node left the group, or its workers failed. None while it may."""
        present = set(members)
        for node in nodes:
            if node not in present:
                return f"{node} left the group"
            event = self.latest.get(node)
            if event is not None and event.attempt == attempt and event.state == "workers_failed":
                return f"workers failed on {node}"
        return None


def root_cause(failures: Iterable[tuple[str, RankFailure]]) -> tuple[str, RankFailure] | None:
    """The first failure that is not the echo of another one: not torchrun's own SIGTERM, not a peer gone away."""
    own = [(node, one) for node, one in failures if one.exitcode != -15]
    return min(own, key=lambda item: (bool(_PEER.search(item[1].message)), item[1].time, item[1].rank), default=None)


@dataclass(frozen=True)
class Failure:
    """One attempt's end, as far as it decides whether to go on."""

    attempt: int
    checkpoints: frozenset[str]
    cause: tuple[str, RankFailure] | None


def failed_for_good(earlier: Failure | None, now: Failure) -> bool:
    """The same rank failed the same way twice with no new checkpoint between."""
    if earlier is None or earlier.cause is None or now.cause is None:
        return False
    before, after = earlier.cause[1], now.cause[1]
    same = (before.rank, before.exitcode, before.message) == (after.rank, after.exitcode, after.message)
    return same and now.checkpoints <= earlier.checkpoints


def complete_checkpoints(keys: Iterable[str], prefix: str, mark: str) -> frozenset[str]:
    """Names of the checkpoints under `prefix` that bear the commit mark, whatever made them."""
    found: Mapping[str, str] = {key: key.removeprefix(prefix) for key in keys}
    return frozenset(name.rsplit("/", 1)[0] for name in found.values() if name.rsplit("/", 1)[-1] == mark)
