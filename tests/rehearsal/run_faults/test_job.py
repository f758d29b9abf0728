"""What faults do later: calls after some time, and repeated calls."""

from typing import cast

from rehearsal.hypervisor.hypervisor import Hypervisor
from rehearsal.run_faults.job import Job


def job() -> Job:
    return Job("run-1", cast(Hypervisor, None))


def test_later_call_occurs_once_when_it_is_due() -> None:
    later, calls = job(), list[str]()
    later.call_later(0, lambda: calls.append("due"))
    later.call_later(3600, lambda: calls.append("not due"))
    later.call_due()
    later.call_due()
    assert (calls, later.has_calls) == (["due"], True)


def test_later_calls_occur_when_the_job_has_ended() -> None:
    later, calls = job(), list[str]()
    later.call_later(3600, lambda: calls.append("resume"))
    assert list(later.finish()) == []
    assert (calls, later.has_calls) == (["resume"], False)


def test_error_of_a_call_does_not_prevent_the_others() -> None:
    later, calls = job(), list[str]()

    def fail() -> None:
        raise OSError("terminated")

    later.call_later(3600, fail)
    later.call_later(3600, lambda: calls.append("resume"))
    assert [str(error) for error in later.finish()] == ["terminated"]
    assert calls == ["resume"]


def test_repeated_call_ends_after_its_time_and_with_the_job() -> None:
    repeated, calls = job(), list[int]()
    repeated.call_repeatedly(lambda: calls.append(1))
    repeated.call_repeatedly(lambda: calls.append(2), seconds=0)
    repeated.call_due()
    repeated.call_due()
    assert list(repeated.finish()) == []
    repeated.call_due()
    assert calls == [1, 1]
