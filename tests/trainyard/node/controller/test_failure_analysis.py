"""Failure analysis of the controller: causes of a failed attempt, and what follows."""

from typing import Any

import pytest

from trainyard.models.decision import AttemptDecision
from trainyard.models.events import RankFailure
from trainyard.models.failure_messages import HUNG_WITH_PEERS
from trainyard.node.controller.failure_analysis import (
    MAXIMUM_ATTEMPTS_WITHOUT_PROGRESS,
    OUTAGE_RETRY_SECONDS,
    AttemptFailure,
    decide,
    find_causes,
)

PEER_LOST = "RuntimeError: Connection reset by peer [10.0.0.1]:41022"


def failure(rank: int, message: str = "ValueError: bad", time: float = 1.0, exitcode: int = 1) -> RankFailure:
    return RankFailure(rank=rank, local_rank=rank % 2, time=time, exitcode=exitcode, message=message, traceback="")


def decide_all(*attempts: dict[str, Any]) -> list[AttemptDecision]:
    """Decide on consecutive attempts of nodes i-1 and i-2, or those that an attempt names."""
    decisions: list[AttemptDecision] = []
    for number, fields in enumerate(attempts, start=1):
        values = {"nodes": ("i-1", "i-2"), **fields}
        decisions.append(decide(AttemptFailure(attempt=number, time=float(number), **values), decisions))
    return decisions


def test_peer_failure_is_not_the_cause() -> None:
    peer_failure = failure(0, "RuntimeError: Connection closed by peer [127.77.1.3]:1234", time=1.0)
    local_failure = failure(3, "ValueError: bad", time=2.0)
    assert find_causes([("i-1", peer_failure), ("i-2", local_failure)]) == [("i-2", local_failure)]


def test_rank_that_hung_with_its_peers_is_not_the_cause() -> None:
    peer_failure = failure(1, f"rank 1| {HUNG_WITH_PEERS}: rank 0 reports the cause", time=1.0, exitcode=75)
    local_failure = failure(
        0, "hang: ranks 0-1 in gloo:all_reduce 3 waiting for rank 2 (a, local rank 2, CPU)", time=2.0
    )
    assert find_causes([("i-1", peer_failure), ("i-2", local_failure)]) == [("i-2", local_failure)]


def test_sigterm_of_torchrun_is_not_the_cause() -> None:
    assert find_causes([("i-1", failure(0, "ended by signal 15", exitcode=-15))]) == []


def test_peer_failures_alone_have_no_cause() -> None:
    (decision,) = decide_all({"failures": [("i-1", failure(0, PEER_LOST))]})
    assert (decision.cause, decision.end_reason, decision.checks_nodes) == ("unknown", None, True)


def test_rank_that_failed_once_runs_on_another_node() -> None:
    (decision,) = decide_all({"failures": [("i-2", failure(2)), ("i-1", failure(0, PEER_LOST))]})
    assert (decision.end_reason, decision.swaps_node, decision.checks_nodes) == (None, "i-2", False)
    assert [evidence.kind for evidence in decision.evidence] == ["rank", "peer"]


def test_same_failure_on_two_nodes_ends_the_run() -> None:
    first, second = decide_all(
        {"failures": [("i-2", failure(2))]}, {"nodes": ("i-2", "i-1"), "failures": [("i-1", failure(2))]}
    )
    assert first.end_reason is None
    assert second.end_reason == "rank 2 (local rank 0 of i-1) failed the same way as i-2 before: ValueError: bad"


CUDA = "torch.AcceleratorError: CUDA error: unknown error"


def hang(waits_for: str) -> list[tuple[str, RankFailure]]:
    """The failures of a hang that rank 0 reports."""
    report = f"hang: ranks 0-1 in nccl:all_reduce 3 waiting for {waits_for}"
    peer = failure(1, f"rank 1| {HUNG_WITH_PEERS}: rank 0 reports the cause", exitcode=75)
    return [("i-1", failure(0, report, exitcode=75)), ("i-1", peer)]


def test_hang_is_a_failure_of_the_rank_that_the_others_wait_for() -> None:
    (decision,) = decide_all({"processes": 2, "failures": hang("rank 3 (host, local rank 1), in backward of step 5")})
    assert (decision.failed_node, decision.swaps_node, decision.checks_nodes) == ("i-2", "i-2", True)
    assert decision.failure is not None
    assert (decision.failure.rank, decision.failure.local_rank) == (3, 1)


def test_hang_that_follows_a_node_is_a_fault_of_the_node() -> None:
    _, second = decide_all(
        {"processes": 2, "failures": hang("rank 3 (host)")},
        {"processes": 2, "nodes": ("i-2", "i-1"), "failures": hang("rank 1, which has sent no heartbeat")},
    )
    assert second.actions == {"i-2": "replace"}


def test_hang_without_a_missing_rank_has_no_cause() -> None:
    report = "hang: ranks 0-3 in nccl:all_reduce 3, which all ranks have started: rank 0 (host), in backward of step 5"
    (decision,) = decide_all({"processes": 2, "failures": [("i-1", failure(0, report, exitcode=75))]})
    assert (decision.cause, decision.failed_node, decision.checks_nodes) == ("unknown", None, True)


def test_hardware_of_two_nodes_may_fail_in_the_same_way() -> None:
    decisions = decide_all(
        {"failures": [("i-2", failure(2, CUDA))]},
        {"nodes": ("i-2", "i-1"), "failures": [("i-1", failure(2, CUDA))]},
        {"nodes": ("i-1", "i-2"), "failures": [("i-1", failure(0, CUDA))]},
    )
    assert [each.end_reason for each in decisions] == [None, None, None]
    assert decisions[-1].actions == {"i-1": "replace"}


def test_peers_are_summarized() -> None:
    nodes = tuple(f"i-{number}" for number in range(1, 2049))
    failures = [("i-1", failure(0)), *((node, failure(2, PEER_LOST)) for node in nodes[1:])]
    (decision,) = decide_all({"nodes": nodes, "failures": failures})
    assert [(each.kind, each.node) for each in decision.evidence] == [("rank", "i-1"), ("peer", "i-2")]
    assert decision.evidence[1].text.endswith("; so did ranks of 2046 other nodes")


def test_failure_on_all_nodes_is_repeated_once() -> None:
    everywhere = {"failures": [("i-1", failure(0)), ("i-2", failure(2))]}
    first, second = decide_all(everywhere, everywhere)
    assert (first.end_reason, first.swaps_node) == (None, None)
    assert second.end_reason is not None


def test_failure_that_follows_a_node_is_a_fault_of_the_node() -> None:
    _, second = decide_all(
        {"failures": [("i-2", failure(2))]}, {"nodes": ("i-2", "i-1"), "failures": [("i-2", failure(0))]}
    )
    assert (second.cause, second.actions, second.end_reason) == ("node", {"i-2": "replace"}, None)
    assert second.attempts_without_progress == 1  # of the first attempt


def test_single_node_ends_the_run_only_after_a_passed_health_check() -> None:
    alone = {"nodes": ("i-1",), "failures": [("i-1", failure(0))]}
    unchecked = decide_all(alone, alone)[-1]
    assert (unchecked.end_reason, unchecked.checks_nodes) == (None, True)
    checked = decide_all(alone, alone, {**alone, "were_checked": True})[-1]
    assert checked.end_reason is not None
    assert "passed a health check" in checked.end_reason
    assert decide_all(alone, {**alone, "can_check": False})[-1].end_reason is not None


def fail_alone(node: str, message: str = "CUDA error: uncorrectable ECC error encountered") -> dict[str, Any]:
    """Fields of a failed attempt on one node, which has passed a health check before."""
    return {"nodes": (node,), "failures": [(node, failure(0, message))], "were_checked": True}


def test_single_node_with_an_error_of_broken_hardware_is_replaced() -> None:
    decision = decide_all(fail_alone("i-1"), fail_alone("i-1"))[-1]
    assert (decision.actions, decision.end_reason) == ({"i-1": "replace"}, None)
    assert (decision.cause, decision.attempts_without_progress) == ("node", 1)


def test_same_error_on_the_replacement_of_a_single_node_ends_the_run() -> None:
    decision = decide_all(fail_alone("i-1"), fail_alone("i-1"), fail_alone("i-2"))[-1]
    assert decision.end_reason is not None
    assert "i-2) failed the same way as i-1 before" in decision.end_reason


def test_assertion_in_a_kernel_is_no_error_of_broken_hardware() -> None:
    message = "CUDA error: device-side assert triggered"
    assert decide_all(fail_alone("i-1", message), fail_alone("i-1", message))[-1].end_reason is not None


def test_permanent_failure_of_a_node_is_not_repeated() -> None:
    cause = RankFailure(
        rank=8, local_rank=None, time=1.0, exitcode=78, message="no package x", traceback="", is_permanent=True
    )
    assert decide_all({"failures": [("i-1", cause)]})[0].end_reason == "node i-1 failed: no package x"


def test_failures_of_environments_with_the_same_message_are_the_same() -> None:
    causes = [
        RankFailure(rank=rank, local_rank=None, time=1.0, exitcode=78, message="no index", traceback="")
        for rank in (0, 2)
    ]
    second = decide_all({"failures": [("i-1", causes[0])]}, {"failures": [("i-2", causes[1])]})[-1]
    assert second.end_reason == "node i-2 failed the same way as i-1 before: no index"


def test_failures_with_different_text_are_the_same() -> None:
    attempts = [{"failures": [("i-1", failure(0, "KeyError: 17"))]}, {"failures": [("i-2", failure(2, "KeyError: 9"))]}]
    assert decide_all(*attempts)[-1].end_reason is not None


def test_another_exception_is_another_failure() -> None:
    attempts = [{"failures": [("i-1", failure(0))]}, {"failures": [("i-2", failure(2, "OSError: disk"))]}]
    assert decide_all(*attempts)[-1].end_reason is None


def test_killed_ranks_are_not_the_same_failure() -> None:
    killed = [{"failures": [(node, failure(0, "ended by signal 9", exitcode=-9))]} for node in ("i-1", "i-2")]
    assert decide_all(*killed)[-1].end_reason is None


def test_new_checkpoint_between_failures_is_progress() -> None:
    second = {"failures": [("i-2", failure(2))], "has_progress": True}
    decision = decide_all({"failures": [("i-1", failure(0))]}, second)[-1]
    assert (decision.end_reason, decision.attempts_without_progress) == (None, 1)


def test_attempts_without_progress_are_limited() -> None:
    attempts: list[dict[str, Any]] = [{"failures": [("i-1", failure(0, f"Error{number}: x"))]} for number in range(3)]
    decisions = decide_all(*attempts, {})
    assert [decision.end_reason for decision in decisions[:-1]] == [None] * (MAXIMUM_ATTEMPTS_WITHOUT_PROGRESS - 1)
    assert (
        decisions[-1].end_reason
        == "4 consecutive attempts failed without a new checkpoint or step; no rank reported a cause"
    )


@pytest.mark.parametrize(
    ("fields", "action"),
    [
        ({"departed": ["i-2"]}, "none"),
        ({"silent": {"i-2": "i-2 has sent no heartbeat for 31 s, and ranks of i-1 failed"}}, "replace"),
        ({"hardware": {"i-2": [("reboot", "Xid 119"), ("replace", "Xid 79")]}}, "replace"),
    ],
)
def test_fault_of_a_node_never_ends_the_run(fields: dict[str, Any], action: str) -> None:
    attempts = [{"failures": [("i-2", failure(2))], **fields}] * (2 * MAXIMUM_ATTEMPTS_WITHOUT_PROGRESS)
    decisions = decide_all(*attempts)
    assert {decision.end_reason for decision in decisions} == {None}
    assert decisions[-1].actions == {"i-2": action}
    assert decisions[-1].attempts_without_progress == 0


@pytest.mark.parametrize("message", ["RuntimeError: CUDA error: unspecified launch failure", "ended by signal 11"])
def test_failure_that_hardware_may_cause_needs_a_health_check(message: str) -> None:
    (decision,) = decide_all({"failures": [("i-1", failure(0, message))]})
    assert decision.checks_nodes


def test_second_failure_without_progress_needs_a_health_check() -> None:
    decisions = decide_all({"failures": [("i-1", failure(0))]}, {"failures": [("i-1", failure(0, "OSError: x"))]})
    assert [decision.checks_nodes for decision in decisions] == [False, True]


def outage(node: str) -> tuple[str, RankFailure]:
    text = "ClientError: An error occurred (ThrottlingException) when calling the GetParameter operation"
    fields = {"rank": 0, "local_rank": None, "time": 1.0, "exitcode": 1, "message": text, "traceback": ""}
    return node, RankFailure.model_validate({**fields, "is_outage": True})


def test_attempts_are_repeated_with_growing_pauses_while_a_service_does_not_respond() -> None:
    attempt = {"failures": [outage("i-1"), outage("i-2")], "outage_limit_seconds": 60.0}
    decisions = decide_all(*[attempt] * 6)
    assert {(each.cause, each.end_reason, each.attempts_without_progress) for each in decisions} == {
        ("outage", None, 0)
    }
    assert [each.retry_seconds for each in decisions[:3]] == [OUTAGE_RETRY_SECONDS * factor for factor in (1, 2, 4)]


def test_run_ends_if_the_service_does_not_respond_in_time() -> None:
    attempt = {"failures": [outage("i-1"), outage("i-2")], "outage_limit_seconds": 2.0}
    *earlier, last = decide_all(*[attempt] * 4)
    assert [each.end_reason for each in earlier] == [None] * 3
    assert last.end_reason is not None
    assert last.end_reason.startswith("no attempt could start for 0.0333333 minutes (launch.replacement_minutes)")


def test_node_that_alone_reaches_no_service_is_replaced() -> None:
    *earlier, last = decide_all(*[{"failures": [outage("i-2")]}] * 3)
    assert [each.actions for each in earlier] == [{}, {}]
    assert (last.cause, last.actions) == ("node", {"i-2": "replace"})
