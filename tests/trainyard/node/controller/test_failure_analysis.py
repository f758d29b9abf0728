"""What the controller concludes."""

from trainyard.models.events import AgentEvent, RankFailure
from trainyard.models.layout import complete_checkpoints
from trainyard.models.run import LostAttempt
from trainyard.node.controller.failure_analysis import VAIN_ATTEMPTS, Fleet, account_for, failed_for_good, root_cause


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


def test_a_rank_that_hung_with_the_others_is_not_the_cause() -> None:
    other = failure(1, "rank 1| hung with the others: rank 0 says why", time=1.0, exitcode=75)
    own = failure(0, "hang: ranks 0-1 in gloo:all_reduce 3 waiting for rank 2 (a, local rank 2, CPU)", time=2.0)
    assert root_cause([("i-1", other), ("i-2", own)]) == ("i-2", own)


def test_torchruns_own_sigterm_is_not_the_cause() -> None:
    assert root_cause([("i-1", failure(0, "ended by signal 15", exitcode=-15))]) is None


def test_echoes_alone_say_nothing() -> None:
    assert root_cause([("i-1", failure(0, "RuntimeError: Connection reset by peer [10.0.0.1]:41022"))]) is None


def lost(*causes: RankFailure | None, checkpoints: tuple[tuple[str, ...], ...] = ()) -> list[LostAttempt]:
    """Attempts that failed one after the other, with what was saved at the end of each."""
    made: list[LostAttempt] = []
    for number, cause in enumerate(causes, start=1):
        saved = checkpoints[number - 1] if checkpoints else ()
        named = ("i-1", cause) if cause else None
        made.append(account_for(made[-1] if made else None, number, saved, named, blameless=False))
    return made


def verdict(attempts: list[LostAttempt]) -> str | None:
    return failed_for_good(attempts[-2] if len(attempts) > 1 else None, attempts[-1])


def test_the_same_failure_twice_is_for_good() -> None:
    assert verdict(lost(failure(2))) is None
    assert verdict(lost(failure(2), failure(2))) == "rank 2 on i-1 failed twice the same way: ValueError: bad"


def test_other_numbers_in_the_message_are_the_same_failure() -> None:
    assert verdict(lost(failure(2, "KeyError: 17"), failure(2, "KeyError: 93"))) is not None


def test_a_new_checkpoint_between_is_progress() -> None:
    assert verdict(lost(failure(2), failure(2), checkpoints=(("1",), ("1", "2")))) is None


def test_another_rank_or_kind_is_another_failure() -> None:
    assert verdict(lost(failure(2), failure(1))) is None
    assert verdict(lost(failure(2), failure(2, "OSError: disk"))) is None


def test_failing_in_vain_ends_whatever_the_reasons() -> None:
    several = [failure(2), None, failure(1), None][:VAIN_ATTEMPTS]
    assert verdict(lost(*several[:-1])) is None
    assert verdict(lost(*several)) == "4 attempts in a row failed and left no new checkpoint; no rank said why"


def test_a_node_that_left_says_nothing_against_the_job() -> None:
    (first,) = lost(failure(2))
    second = account_for(first, 2, (), ("i-1", failure(2)), blameless=True)
    assert (second.in_vain, failed_for_good(first, second)) == (0, None)


def test_an_attempt_opens_with_all_nodes_or_not() -> None:
    fleet = Fleet()
    fleet.hear(event("i-1", "ready", 0))
    assert fleet.candidates(["i-1", "i-2"], 2) is None
    fleet.hear(event("i-2", "ready", 0))
    assert fleet.candidates(["i-1", "i-2"], 2) == ("i-1", "i-2")
    assert fleet.candidates(["i-1"], 2) is None


def test_a_node_outside_the_group_is_gone() -> None:
    fleet = Fleet()
    fleet.hear(event("i-1", "workers_up"))
    assert fleet.gone(["i-1"], ["i-1"]) is None
    assert fleet.gone(["i-1"], []) == "i-1"


def test_failed_and_silent_nodes_are_those_of_this_attempt() -> None:
    fleet = Fleet()
    fleet.hear(event("i-1", "workers_failed", 1))
    fleet.hear(event("i-2", "workers_up", 1))
    assert (fleet.failed(1, ["i-1", "i-2"]), fleet.silent(1, ["i-1", "i-2"])) == (["i-1"], ["i-2"])
    assert (fleet.failed(2, ["i-1"]), fleet.silent(2, ["i-1"])) == ([], ["i-1"])


def test_done_needs_every_node_of_this_attempt() -> None:
    fleet = Fleet()
    fleet.hear(event("i-1", "workers_done", 2))
    fleet.hear(event("i-2", "workers_done", 1))
    assert not fleet.all_in("workers_done", 2, ["i-1", "i-2"])
    fleet.hear(event("i-2", "workers_done", 2, time=3.0))
    assert fleet.all_in("workers_done", 2, ["i-1", "i-2"])


def test_a_checkpoint_without_its_mark_does_not_count() -> None:
    keys = ["c/step-1/.metadata", "c/step-1/__0_0.distcp", "c/step-2/__0_0.distcp"]
    assert complete_checkpoints(keys, "c/") == ["step-1"]
