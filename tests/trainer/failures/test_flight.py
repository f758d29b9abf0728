"""Who is missing, by what the flight recorders of all ranks say."""

from typing import Any

import pytest

from trainer.failures.flight import Flight, Operation, Place, absent, is_open, ranks_in_words, waits

ALL = (0, 1, 2, 3)


def at(number: int, *, waiting: bool, group: str = "0", ranks: tuple[int, ...] = ALL) -> Flight:
    """A rank whose last collective in a group is `number`, ended or not."""
    one = Operation(name="gloo:all_reduce", group=group, number=number, point_to_point=False)
    return Flight(open=(one,) if waiting else (), places={f"{group} gloo": Place(ranks=ranks, begun=number)})


def both(*flights: Flight) -> Flight:
    places = {key: place for one in flights for key, place in one.places.items()}
    return Flight(open=tuple(each for one in flights for each in one.open), places=places)


def test_who_has_not_begun_what_the_others_wait_in_is_named() -> None:
    flights = {rank: at(7, waiting=True) for rank in (0, 1, 3)} | {2: at(6, waiting=False)}
    assert absent(flights, []) == [2]
    assert waits(flights) == "ranks 0-1 3 in gloo:all_reduce 7"


def test_who_does_not_answer_is_named() -> None:
    assert absent({rank: at(7, waiting=True) for rank in (0, 1, 3)}, [2]) == [2]


def test_who_is_late_because_it_waits_itself_is_not_named() -> None:
    """Rank 3 has not come to the collective of all, for it waits for rank 2 in that of two."""
    pair = (2, 3)
    flights = {
        0: at(7, waiting=True),
        1: at(7, waiting=True),
        2: both(at(6, waiting=False), at(4, waiting=False, group="5", ranks=pair)),
        3: both(at(6, waiting=False), at(5, waiting=True, group="5", ranks=pair)),
    }
    assert absent(flights, []) == [2]


def test_ranks_that_wait_for_each_other_are_all_named() -> None:
    first = {"group": "1", "ranks": (0, 1)}
    flights: dict[int, Flight] = {
        0: both(at(3, waiting=True), at(1, waiting=False, **first)),  # type: ignore[arg-type]
        1: both(at(2, waiting=False), at(2, waiting=True, **first)),  # type: ignore[arg-type]
    }
    assert absent(flights, []) == [0, 1]


def test_of_a_receive_those_that_wait_in_nothing_are_named() -> None:
    receive = Operation(name="gloo:recv", group="2", number=3, point_to_point=True)
    waiting = Flight(open=(receive,), places={})
    assert absent({0: waiting, 1: Flight(open=(), places={})}, []) == [1]


def test_nobody_is_named_where_all_have_come_or_none_waits() -> None:
    assert absent({rank: at(7, waiting=True) for rank in ALL}, []) == []
    assert absent({rank: at(7, waiting=False) for rank in ALL}, []) == []


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"retired": False, "state": "scheduled"}, True),
        ({"retired": False, "state": "started"}, True),
        ({"retired": True, "state": "scheduled"}, False),  # gloo's, ended
        ({"retired": False, "state": "completed"}, False),  # NCCL's, before its watchdog has seen it
    ],
)
def test_both_backends_ways_of_telling_an_end_are_known(entry: dict[str, Any], expected: bool) -> None:
    assert is_open(entry) is expected


def test_ranks_are_told_in_runs() -> None:
    assert ranks_in_words([3]) == "rank 3"
    assert ranks_in_words([5, 0, 2, 1]) == "ranks 0-2 5"
