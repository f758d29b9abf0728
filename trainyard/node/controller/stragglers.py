"""Finds ranks that are slower than the others, from the progress that they report with the heartbeats.

A rank that waits for others in a collective operation takes as long for a step as they do. So only the time in which it
did not wait counts (`busy_seconds`), and ranks that do not measure it are ignored.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median, median_low

from trainyard.node.controller.agent_server import ReceivedHeartbeat

SLOW_FACTOR = 1.3
# A rank must be slow for this many steps: a data loader or a garbage collection may delay some.
SLOW_STEPS = 50
# It must also be slow in this many heartbeats that report a new step. With steps of 0.2 s, 50 steps take two heartbeats
# only, and another process of the node may delay a rank for that time. Ten heartbeats take 50 s, about as long as the
# health check that interrupts the job.
SLOW_HEARTBEATS = 10
MINIMUM_RANKS = 3  # with two ranks, the median does not show which rank is slow
_SAMPLES = 5


@dataclass(frozen=True)
class SlowRank:
    """A rank that is slower than the others. `busy_seconds` of a step; `usual_seconds`: the median of all ranks."""

    rank: int
    local_rank: int
    node: str
    busy_seconds: float
    usual_seconds: float
    steps: int

    def describe(self) -> str:
        """Return the observation in one sentence."""
        ratio = self.busy_seconds / self.usual_seconds
        where = f"rank {self.rank} (local rank {self.local_rank} of {self.node})"
        return f"{where} has been {ratio:.1f} times as slow as the median of all ranks for {self.steps} steps"


@dataclass
class _Rank:
    node: str
    local_rank: int
    step: int = 0
    heartbeats: int = 0  # with another step
    samples: deque[float] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    slow_since: tuple[int, int] | None = None  # step and heartbeats


class Stragglers:
    """The speed of the ranks of one attempt."""

    def __init__(self) -> None:
        self._attempt, self._usual_seconds = 0, 0.0
        self._ranks: dict[int, _Rank] = {}

    def update(self, attempt: int, processes: int, heartbeats: Mapping[str, ReceivedHeartbeat]) -> None:
        """Add the progress of the ranks in this attempt. `processes`: per node."""
        if attempt != self._attempt:
            self._attempt, self._ranks = attempt, {}
        has_progress = False
        for node, received in heartbeats.items():
            if received.heartbeat.attempt != attempt:
                continue
            for progress in received.heartbeat.ranks:
                rank = self._ranks.setdefault(progress.rank, _Rank(node, progress.rank % processes))
                if progress.busy_seconds is not None and progress.step > rank.step:
                    rank.step, rank.heartbeats = progress.step, rank.heartbeats + 1
                    rank.samples.append(progress.busy_seconds)
                    has_progress = True
        if has_progress:
            self._compare()

    def _compare(self) -> None:
        speeds = {number: median(rank.samples) for number, rank in self._ranks.items() if rank.samples}
        if len(speeds) < MINIMUM_RANKS:
            return
        self._usual_seconds = median_low(speeds.values())
        for number, seconds in speeds.items():
            rank = self._ranks[number]
            if seconds <= SLOW_FACTOR * self._usual_seconds:
                rank.slow_since = None
            elif rank.slow_since is None:
                rank.slow_since = (rank.step, rank.heartbeats)

    def find_slow_ranks(self) -> list[SlowRank]:
        """Return the ranks that have been slow for SLOW_STEPS steps and SLOW_HEARTBEATS, the slowest first."""
        slow = []
        for number, rank in self._ranks.items():
            if rank.slow_since is None:
                continue
            steps, heartbeats = rank.step - rank.slow_since[0], rank.heartbeats - rank.slow_since[1]
            if steps >= SLOW_STEPS and heartbeats >= SLOW_HEARTBEATS:
                seconds = median(rank.samples)
                slow.append(SlowRank(number, rank.local_rank, rank.node, seconds, self._usual_seconds, steps))
        return sorted(slow, key=lambda each: -each.busy_seconds)
