"""Ranks that are slower than the others."""

from collections.abc import Sequence

from trainyard.models.connection import Heartbeat
from trainyard.models.rank_progress import RankProgress
from trainyard.node.controller.agent_server import ReceivedHeartbeat
from trainyard.node.controller.stragglers import SLOW_HEARTBEATS, SLOW_STEPS, Stragglers


def report(stragglers: Stragglers, step: int, seconds: Sequence[float | None], attempt: int = 1) -> None:
    """Add heartbeats of nodes with two ranks each. `seconds`: busy seconds of each rank."""
    heartbeats = {}
    for node in range(len(seconds) // 2):
        ranks = tuple(
            RankProgress(rank=rank, step=step, time=1.0, step_seconds=2.0, busy_seconds=seconds[rank])
            for rank in (2 * node, 2 * node + 1)
        )
        heartbeat = Heartbeat(instance=f"i-{node}", boot="0001", sequence=step, run="r", attempt=attempt, ranks=ranks)
        heartbeats[f"i-{node}"] = ReceivedHeartbeat(heartbeat, float(step))
    stragglers.update(1, 2, heartbeats)


def test_rank_that_is_slow_for_many_steps_is_a_straggler() -> None:
    stragglers = Stragglers()
    for step in range(0, SLOW_STEPS + 1, 5):
        report(stragglers, step + 1, [1.0, 1.0, 1.0, 1.5])
        assert stragglers.find_slow_ranks() == [] or step >= SLOW_STEPS
    (slow,) = stragglers.find_slow_ranks()
    assert (slow.rank, slow.local_rank, slow.node) == (3, 1, "i-1")
    expected = "rank 3 (local rank 1 of i-1) has been 1.5 times as slow as the median of all ranks for 50 steps"
    assert slow.describe() == expected


def test_rank_of_short_steps_must_be_slow_in_several_heartbeats() -> None:
    stragglers = Stragglers()
    for number in range(SLOW_HEARTBEATS + 1):
        assert stragglers.find_slow_ranks() == []
        report(stragglers, 1 + SLOW_STEPS * number, [1.0, 1.0, 1.0, 3.0])
    assert [slow.rank for slow in stragglers.find_slow_ranks()] == [3]


def test_rank_that_is_slow_at_times_is_no_straggler() -> None:
    stragglers = Stragglers()
    for step in range(1, 4 * SLOW_STEPS, 5):
        report(stragglers, step, [1.0, 1.0, 1.0, 3.0 if step % 4 == 0 else 1.0])
        assert stragglers.find_slow_ranks() == []


def test_ranks_that_do_not_measure_their_waiting_time_are_ignored() -> None:
    stragglers = Stragglers()
    for step in range(1, 4 * SLOW_STEPS, 5):
        report(stragglers, step, [None, None, None, 9.0])
    assert stragglers.find_slow_ranks() == []


def test_progress_of_another_attempt_does_not_count() -> None:
    stragglers = Stragglers()
    for step in range(1, 4 * SLOW_STEPS, 5):
        report(stragglers, step, [1.0, 1.0, 1.0, 3.0], attempt=2)
    assert stragglers.find_slow_ranks() == []
