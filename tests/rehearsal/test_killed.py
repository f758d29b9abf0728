"""A rehearsal that is killed in any of its phases hinders no other, and the next one of its stack sweeps it up."""

import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.polling import eventually
from tests.rehearsal.running import INTERRUPTED, JOB_OF, Begin, Running, beginning, nothing_left


@pytest.fixture
def begin(quick_tree: Path) -> Iterator[Begin]:
    with beginning(quick_tree, Running) as begin:
        yield begin


def living(running: Running) -> list[psutil.Process]:
    return [one for one in running.family if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


def kill(running: Running) -> None:
    running.send(signal.SIGKILL)
    assert running.process.wait(10) == -signal.SIGKILL


def check_swept(killed: Running, after: Running) -> None:
    """The next one says whom it swept up after, and nothing of that one lives."""
    after.says(f"processes that an earlier rehearsal (process {killed.process.pid}, which was cut) left")
    eventually(lambda: not living(killed), "the end of what was swept up", 5.0)


def test_each_next_one_sweeps_up_what_a_kill_left(begin: Begin) -> None:
    killed = begin("killed")
    killed.reaches("start")
    kill(killed)
    nothing_left(killed)  # it had not even the lock
    killed = begin("killed")
    killed.reaches("account")
    kill(killed)
    for phase in ("preview", "resources", "destroy", "bring-up"):
        after = begin("killed", JOB_OF.get(phase, "endless"))
        check_swept(killed, after)
        after.reaches(phase)
        kill(after)
        killed = after
    other = begin("unhindered")
    other.reaches("resources")
    assert "earlier rehearsal" not in other.told()
    other.send(signal.SIGINT)
    assert other.ends().report["errors"] == [INTERRUPTED]
    nothing_left(other)
    end_with_a_sweep(begin, killed)


def end_with_a_sweep(begin: Begin, killed: Running) -> None:
    after = begin(killed.stack)
    check_swept(killed, after)
    after.reaches("account")
    after.send(signal.SIGTERM)
    assert after.ends().report["errors"] == [INTERRUPTED]
    nothing_left(after)


def test_nodes_of_a_killed_one_are_swept_up_whatever_they_do(begin: Begin) -> None:
    phases = ["launch", "training", "checkpoint"]
    running = {phase: begin(f"killed-{phase}", JOB_OF.get(phase, "endless")) for phase in phases}
    for phase in phases:
        running[phase].reaches(phase)
        kill(running[phase])
    for one in running.values():
        end_with_a_sweep(begin, one)


def test_a_second_signal_ends_it_at_once_and_the_next_one_sweeps_up(begin: Begin) -> None:
    running = begin("impatient", "refused")
    running.reaches("destroy")
    (aws,) = [one for one in running.family if "rehearsal.aws" in one.cmdline()]
    aws.suspend()  # destroy waits for its answers
    running.send(signal.SIGTERM)

    def signalled_again() -> bool:
        if running.process.poll() is None:
            running.send(signal.SIGTERM)
        return running.process.poll() is not None

    eventually(signalled_again, "the end at a second signal", 10.0)
    ended = running.ends()
    assert (ended.status, ended.report) == (1, {})
    words = f"rehearsal: interrupted again, cut: the next rehearsal of {running.stack} sweeps up what is left"
    assert ended.told.splitlines()[-1] == words
    assert "Traceback" not in ended.told
    assert aws in living(running)
    end_with_a_sweep(begin, running)
