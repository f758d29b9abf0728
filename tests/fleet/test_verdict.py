"""What the controller concludes."""

from contract.events import AgentEvent, RankFailure
from fleet.verdict import Failure, Fleet, complete_checkpoints, failed_for_good, root_cause


def failure(rank: int, message: str = "ValueError: bad", time: float = 1.0, exitcode: int = 1) -> RankFailure:
    return RankFailure(rank=rank, time=time, exitcode=exitcode, message=message, traceback="")


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


def test_a_peers_echo_is_not_the_cause() -> None:
    echo = failure(0, "RuntimeError: Connection closed by peer [127.77.1.3]:1234", time=1.0)
    own = failure(3, "ValueError: bad", time=2.0)
    assert root_cause([("i-1", echo), ("i-2", own)]) == ("i-2", own)


def test_torchruns_own_sigterm_is_not_the_cause() -> None:
    assert root_cause([("i-1", failure(0, "ended by signal 15", exitcode=-15))]) is None


def test_the_same_failure_twice_is_for_good() -> None:
    one, two = (Failure(number, frozenset({"step-1"}), ("i-1", failure(2))) for number in (1, 2))
    assert failed_for_good(one, two)


def test_a_new_checkpoint_between_is_progress() -> None:
    before = Failure(1, frozenset({"step-1"}), ("i-1", failure(2)))
    after = Failure(2, frozenset({"step-1", "step-2"}), ("i-1", failure(2)))
    assert not failed_for_good(before, after)


def test_another_rank_or_message_is_another_failure() -> None:
    before = Failure(1, frozenset(), ("i-1", failure(2)))
    assert not failed_for_good(before, Failure(2, frozenset(), ("i-1", failure(1))))
    assert not failed_for_good(before, Failure(2, frozenset(), ("i-1", failure(2, "OSError: disk"))))
    assert not failed_for_good(None, before)


def test_an_attempt_opens_with_all_nodes_or_not() -> None:
    fleet = Fleet()
    fleet.hear(event("i-1", "ready", 0))
    assert fleet.candidates(["i-1", "i-2"], 2) is None
    fleet.hear(event("i-2", "ready", 0))
    assert fleet.candidates(["i-1", "i-2"], 2) == ("i-1", "i-2")
    assert fleet.candidates(["i-1"], 2) is None


def test_an_attempt_is_lost_with_a_node_or_its_workers() -> None:
    fleet = Fleet()
    fleet.hear(event("i-1", "workers_up"))
    assert fleet.lost(1, ["i-1"], ["i-1"]) is None
    assert fleet.lost(1, ["i-1"], []) == "i-1 left the group"
    fleet.hear(event("i-1", "workers_failed", time=2.0))
    assert fleet.lost(1, ["i-1"], ["i-1"]) == "workers failed on i-1"
    assert fleet.lost(2, ["i-1"], ["i-1"]) is None


def test_done_needs_every_node_of_this_attempt() -> None:
    fleet = Fleet()
    fleet.hear(event("i-1", "workers_done", 2))
    fleet.hear(event("i-2", "workers_done", 1))
    assert not fleet.all_in("workers_done", 2, ["i-1", "i-2"])
    fleet.hear(event("i-2", "workers_done", 2, time=3.0))
    assert fleet.all_in("workers_done", 2, ["i-1", "i-2"])


def test_a_checkpoint_without_its_mark_does_not_count() -> None:
    keys = ["c/step-1/.metadata", "c/step-1/__0_0.distcp", "c/step-2/__0_0.distcp"]
    assert complete_checkpoints(keys, "c/", ".metadata") == frozenset({"step-1"})
