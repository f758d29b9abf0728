"""The books of a run: each billed second of a worker has one use."""

import pytest

from rehearsal.chaos.books import keep_books
from tests.rehearsal.chaos.runs import agent, decision, injection, interrupted_run, worker

KILL = injection("rank-kill,rank=3,after=10", 40.5, "a")


def test_books_of_an_interrupted_run_balance() -> None:
    books = keep_books([KILL], interrupted_run())
    assert books.billed_seconds == 140
    assert books.causes == {
        "load": 2 * (10 + 5),
        "startup of a node": 2 * 10,
        "health check": 2 * 10,
        "detection": 2 * 5,
        "stop": 2 * 5,
        "useful steps": 2 * 20,
        "steps done again": 2 * 2,
        "end of the run": 2 * 3,
    }
    assert books.unexplained_share == pytest.approx(0)
    assert books.goodput == pytest.approx(20 / 37, abs=1e-4)


def test_failure_without_a_fault_is_unexplained() -> None:
    books = keep_books([], interrupted_run())
    assert books.unexplained_share == pytest.approx(2 * (55 - 40) / 140)  # until the next step


def test_steps_after_a_decision_count_once() -> None:
    run = interrupted_run()
    early = run.model_copy(update={"decisions": (decision(1, 38.0, a="none"),)})
    books = keep_books([injection("rank-kill,rank=3,after=10", 37.5, "a")], early)
    assert books.unexplained_share == pytest.approx(0)
    assert (books.causes["stop"], "repair of nodes" in books.causes) == (2 * 10, False)


def test_replaced_node_and_its_replacement_have_their_own_uses() -> None:
    run = interrupted_run()
    events = [event for event in run.events if (event.instance, event.time) != ("b", 50.0)]
    replaced = run.model_copy(
        update={
            "instances": (worker("a", 0, 70), worker("b", 0, 48), worker("c", 46, 70)),
            "decisions": (decision(1, 45, b="replace"),),
            "events": (*events, agent("c", "ready", 49, attempt=0), agent("c", "workers_up", 50, attempt=2)),
        }
    )
    books = keep_books([injection("node-hang,node=1", 40.5, "b")], replaced)
    assert books.causes["termination of replaced nodes"] == 3
    assert books.causes["startup of a node"] == 2 * 10 + 3
    assert books.causes["replacement of nodes"] == 5 + 1
    assert books.unexplained_share == pytest.approx(0)


def test_node_that_no_attempt_uses_is_a_spare() -> None:
    run = interrupted_run()
    spare = run.model_copy(
        update={
            "instances": (*run.instances, worker("c", 0, 70)),
            "events": (*run.events, agent("c", "ready", 10, attempt=0)),
        }
    )
    assert keep_books([KILL], spare).causes["spare"] == 22
