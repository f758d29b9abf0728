"""Use of the billed time: each billed second of a worker has one use."""

import pytest

from rehearsal.chaos.instance_usage import measure_usage
from tests.rehearsal.chaos.runs import agent, decision, injection, interrupted_run, worker

KILL = injection("rank-kill,rank=3,after=10", 40.5, "a")


def test_books_of_an_interrupted_run_balance() -> None:
    usage = measure_usage([KILL], interrupted_run())
    assert usage.billed_seconds == 140
    assert usage.seconds == {
        "load": 2 * (10 + 5),
        "startup of a node": 2 * 10,
        "health check": 2 * 10,
        "detection": 2 * 5,
        "restart of the ranks": 2 * 5,
        "useful steps": 2 * 20,
        "repeated steps": 2 * 2,
        "end of the run": 2 * 3,
    }
    assert usage.unexplained_share == pytest.approx(0)
    assert usage.goodput == pytest.approx(20 / 37, abs=1e-4)


def test_failure_without_a_fault_is_unexplained() -> None:
    usage = measure_usage([], interrupted_run())
    assert usage.unexplained_share == pytest.approx(2 * (55 - 40) / 140)  # until the next step


def test_steps_after_a_decision_count_once() -> None:
    run = interrupted_run()
    early = run.model_copy(update={"decisions": (decision(1, 38.0, a="none"),)})
    usage = measure_usage([injection("rank-kill,rank=3,after=10", 37.5, "a")], early)
    assert usage.unexplained_share == pytest.approx(0)
    assert (usage.seconds["restart of the ranks"], "repair of nodes" in usage.seconds) == (2 * 10, False)


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
    usage = measure_usage([injection("node-hang,node=1", 40.5, "b")], replaced)
    assert usage.seconds["termination of replaced nodes"] == 3
    assert usage.seconds["startup of a node"] == 2 * 10 + 3
    assert usage.seconds["replacement of nodes"] == 5 + 1
    assert usage.unexplained_share == pytest.approx(0)


def test_node_that_no_attempt_uses_is_a_spare() -> None:
    run = interrupted_run()
    spare = run.model_copy(
        update={
            "instances": (*run.instances, worker("c", 0, 70)),
            "events": (*run.events, agent("c", "ready", 10, attempt=0)),
        }
    )
    assert measure_usage([KILL], spare).seconds["spare"] == 22
