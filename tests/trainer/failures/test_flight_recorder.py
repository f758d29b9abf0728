"""Missing ranks according to the flight recorders of all ranks."""

from typing import Any

import pytest

from trainer.failures.flight_recorder import (
    FlightSummary,
    GroupProgress,
    Operation,
    find_missing_ranks,
    format_ranks,
    format_waiting_ranks,
    is_open,
)

ALL = (0, 1, 2, 3)


def summary(number: int, *, waiting: bool, group: str = "0", ranks: tuple[int, ...] = ALL) -> FlightSummary:
    """A rank whose last collective in a group is `number`; `waiting`: not completed."""
    operation = Operation(name="gloo:all_reduce", group=group, number=number, point_to_point=False)
    return FlightSummary(
        open=(operation,) if waiting else (), groups={f"{group} gloo": GroupProgress(ranks=ranks, last_started=number)}
    )


def merge(*summaries: FlightSummary) -> FlightSummary:
    groups = {key: group for entry in summaries for key, group in entry.groups.items()}
    return FlightSummary(open=tuple(operation for entry in summaries for operation in entry.open), groups=groups)


def test_rank_that_has_not_started_a_collective_is_missing() -> None:
    summaries = {rank: summary(7, waiting=True) for rank in (0, 1, 3)} | {2: summary(6, waiting=False)}
    assert find_missing_ranks(summaries, []) == [2]
    assert format_waiting_ranks(summaries) == "ranks 0-1 3 in gloo:all_reduce 7"


def test_unresponsive_rank_is_missing() -> None:
    assert find_missing_ranks({rank: summary(7, waiting=True) for rank in (0, 1, 3)}, [2]) == [2]


def test_late_rank_that_waits_itself_is_not_missing() -> None:
    """Rank 3 has not started the collective of all ranks, because it waits for rank 2 in that of two ranks."""
    pair = (2, 3)
    summaries = {
        0: summary(7, waiting=True),
        1: summary(7, waiting=True),
        2: merge(summary(6, waiting=False), summary(4, waiting=False, group="5", ranks=pair)),
        3: merge(summary(6, waiting=False), summary(5, waiting=True, group="5", ranks=pair)),
    }
    assert find_missing_ranks(summaries, []) == [2]


def test_ranks_that_wait_for_each_other_are_all_missing() -> None:
    first = {"group": "1", "ranks": (0, 1)}
    summaries: dict[int, FlightSummary] = {
        0: merge(summary(3, waiting=True), summary(1, waiting=False, **first)),  # type: ignore[arg-type]
        1: merge(summary(2, waiting=False), summary(2, waiting=True, **first)),  # type: ignore[arg-type]
    }
    assert find_missing_ranks(summaries, []) == [0, 1]


def test_idle_ranks_are_missing_in_a_receive() -> None:
    receive = Operation(name="gloo:recv", group="2", number=3, point_to_point=True)
    waiting = FlightSummary(open=(receive,), groups={})
    assert find_missing_ranks({0: waiting, 1: FlightSummary(open=(), groups={})}, []) == [1]


def test_no_rank_is_missing_if_all_or_none_wait() -> None:
    assert find_missing_ranks({rank: summary(7, waiting=True) for rank in ALL}, []) == []
    assert find_missing_ranks({rank: summary(7, waiting=False) for rank in ALL}, []) == []


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"retired": False, "state": "scheduled"}, True),
        ({"retired": False, "state": "started"}, True),
        ({"retired": True, "state": "scheduled"}, False),  # gloo, completed
        ({"retired": False, "state": "completed"}, False),  # NCCL, before its watchdog has retired the entry
    ],
)
def test_completed_entries_of_both_backends(entry: dict[str, Any], expected: bool) -> None:
    assert is_open(entry) is expected


def test_ranks_are_formatted_as_ranges() -> None:
    assert format_ranks([3]) == "rank 3"
    assert format_ranks([5, 0, 2, 1]) == "ranks 0-2 5"
