"""Failure analysis of the controller."""

from trainyard.models.events import AgentEvent, RankFailure
from trainyard.models.failure_messages import HUNG_WITH_PEERS
from trainyard.models.layout import complete_checkpoints
from trainyard.models.run import FailedAttempt
from trainyard.node.controller.failure_analysis import (
    MAXIMUM_ATTEMPTS_WITHOUT_PROGRESS,
    NodeStates,
    create_failed_attempt,
    find_first_failure,
    find_permanent_failure,
)


def failure(rank: int, message: str = "ValueError: bad", time: float = 1.0, exitcode: int = 1) -> RankFailure:
    return RankFailure(rank=rank, local_rank=rank % 2, time=time, exitcode=exitcode, message=message, traceback="")


def event(instance: str, state: str, attempt: int = 1, time: float = 1.0) -> AgentEvent:
    return AgentEvent.model_validate(
        {
            "time": time,
            "instance": instance,
            "role": "worker",
            "boot": "0001",
            "run": "r",
            "attempt": attempt,
            "state": state,
            "address": "10.0.0.1",
        }
    )


def test_peer_failure_is_not_the_cause() -> None:
    peer_failure = failure(0, "RuntimeError: Connection closed by peer [127.77.1.3]:1234", time=1.0)
    local_failure = failure(3, "ValueError: bad", time=2.0)
    assert find_first_failure([("i-1", peer_failure), ("i-2", local_failure)]) == ("i-2", local_failure)


def test_rank_that_hung_with_its_peers_is_not_the_cause() -> None:
    peer_failure = failure(1, f"rank 1| {HUNG_WITH_PEERS}: rank 0 reports the cause", time=1.0, exitcode=75)
    local_failure = failure(
        0, "hang: ranks 0-1 in gloo:all_reduce 3 waiting for rank 2 (a, local rank 2, CPU)", time=2.0
    )
    assert find_first_failure([("i-1", peer_failure), ("i-2", local_failure)]) == ("i-2", local_failure)


def test_sigterm_of_torchrun_is_not_the_cause() -> None:
    assert find_first_failure([("i-1", failure(0, "ended by signal 15", exitcode=-15))]) is None


def test_peer_failures_alone_have_no_cause() -> None:
    assert find_first_failure([("i-1", failure(0, "RuntimeError: Connection reset by peer [10.0.0.1]:41022"))]) is None


def create_attempts(*causes: RankFailure | None, checkpoints: tuple[tuple[str, ...], ...] = ()) -> list[FailedAttempt]:
    """Consecutive failed attempts, with the checkpoints at the end of each."""
    attempts: list[FailedAttempt] = []
    for number, cause in enumerate(causes, start=1):
        checkpoint_names = checkpoints[number - 1] if checkpoints else ()
        node_and_failure = ("i-1", cause) if cause else None
        attempts.append(
            create_failed_attempt(
                attempts[-1] if attempts else None, number, checkpoint_names, node_and_failure, is_node_loss=False
            )
        )
    return attempts


def permanent_failure(attempts: list[FailedAttempt]) -> str | None:
    return find_permanent_failure(attempts[-2] if len(attempts) > 1 else None, attempts[-1])


def test_same_failure_twice_is_permanent() -> None:
    assert permanent_failure(create_attempts(failure(2))) is None
    assert (
        permanent_failure(create_attempts(failure(2), failure(2)))
        == "rank 2 (local rank 0 of i-1) failed twice the same way: ValueError: bad"
    )


def test_permanent_failure_of_a_node_is_not_repeated() -> None:
    cause = RankFailure(
        rank=8, local_rank=None, time=1.0, exitcode=78, message="no package x", traceback="", is_permanent=True
    )
    assert permanent_failure(create_attempts(cause)) == "node i-1 failed: no package x"


def test_temporary_failures_of_nodes_with_the_same_message_are_the_same() -> None:
    causes = [
        RankFailure(rank=rank, local_rank=None, time=1.0, exitcode=78, message="no index", traceback="")
        for rank in (0, 8)
    ]
    assert permanent_failure(create_attempts(*causes)) == "node i-1 failed twice the same way: no index"


def test_failures_with_different_text_are_the_same() -> None:
    assert permanent_failure(create_attempts(failure(2, "KeyError: 17"), failure(2, "KeyError: 93"))) is not None


def test_new_checkpoint_between_failures_is_progress() -> None:
    assert permanent_failure(create_attempts(failure(2), failure(2), checkpoints=(("1",), ("1", "2")))) is None


def test_another_rank_or_exception_is_another_failure() -> None:
    assert permanent_failure(create_attempts(failure(2), failure(1))) is None
    assert permanent_failure(create_attempts(failure(2), failure(2, "OSError: disk"))) is None


def test_attempts_without_progress_are_limited() -> None:
    failures = [failure(2), None, failure(1), None][:MAXIMUM_ATTEMPTS_WITHOUT_PROGRESS]
    assert permanent_failure(create_attempts(*failures[:-1])) is None
    assert (
        permanent_failure(create_attempts(*failures))
        == "4 consecutive attempts failed without a new checkpoint; no rank reported a cause"
    )


def test_node_loss_does_not_count_against_the_job() -> None:
    (first,) = create_attempts(failure(2))
    second = create_failed_attempt(first, 2, (), ("i-1", failure(2)), is_node_loss=True)
    assert (second.attempts_without_progress, find_permanent_failure(first, second)) == (0, None)


def test_select_nodes_needs_all_nodes() -> None:
    states = NodeStates()
    states.update(event("i-1", "ready", 0))
    assert states.select_nodes(["i-1", "i-2"], 2) is None
    states.update(event("i-2", "ready", 0))
    assert states.select_nodes(["i-1", "i-2"], 2) == ("i-1", "i-2")
    assert states.select_nodes(["i-1"], 2) is None


def test_node_outside_the_group_is_lost() -> None:
    states = NodeStates()
    states.update(event("i-1", "workers_up"))
    assert states.find_lost_node(["i-1"], ["i-1"]) is None
    assert states.find_lost_node(["i-1"], []) == "i-1"


def test_failed_and_unreported_nodes_are_those_of_the_attempt() -> None:
    states = NodeStates()
    states.update(event("i-1", "workers_failed", 1))
    states.update(event("i-2", "workers_up", 1))
    assert (states.failed_nodes(1, ["i-1", "i-2"]), states.unreported_nodes(1, ["i-1", "i-2"])) == (["i-1"], ["i-2"])
    assert (states.failed_nodes(2, ["i-1"]), states.unreported_nodes(2, ["i-1"])) == ([], ["i-1"])


def test_state_must_be_that_of_all_nodes_in_the_attempt() -> None:
    states = NodeStates()
    states.update(event("i-1", "workers_done", 2))
    states.update(event("i-2", "workers_done", 1))
    assert not states.all_have_state("workers_done", 2, ["i-1", "i-2"])
    states.update(event("i-2", "workers_done", 2, time=3.0))
    assert states.all_have_state("workers_done", 2, ["i-1", "i-2"])


def test_checkpoint_without_commit_mark_does_not_count() -> None:
    keys = ["c/step-1/.metadata", "c/step-1/__0_0.distcp", "c/step-2/__0_0.distcp"]
    assert complete_checkpoints(keys, "c/") == ["step-1"]
