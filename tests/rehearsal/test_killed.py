"""A killed rehearsal does not affect others, and the next rehearsal of its stack removes its leftovers."""

import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rehearsal.hypervisor.processes import command_line
from tests.polling import eventually
from tests.rehearsal.running import (
    INTERRUPTED,
    PHASE_JOBS,
    RehearsalProcess,
    StartRehearsal,
    assert_no_leftovers,
    rehearsal_starter,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def start_rehearsal(tree_without_checks: Path) -> Iterator[StartRehearsal]:
    with rehearsal_starter(tree_without_checks, RehearsalProcess) as start_rehearsal:
        yield start_rehearsal


def running_processes(rehearsal: RehearsalProcess) -> list[psutil.Process]:
    """Return the processes of a rehearsal that still run."""
    running = [process for process in rehearsal.family if process.is_running()]
    return [process for process in running if process.status() != psutil.STATUS_ZOMBIE]


def kill(running: RehearsalProcess) -> None:
    """Kill the main process of a rehearsal."""
    running.send_signal(signal.SIGKILL)
    assert running.process.wait(10) == -signal.SIGKILL


def assert_leftovers_removed(killed: RehearsalProcess, following: RehearsalProcess) -> None:
    """Assert that the next rehearsal reports the killed process, and that its processes have ended."""
    following.wait_for_output(f" of an earlier rehearsal (process {killed.process.pid}, killed)")
    eventually(lambda: not running_processes(killed), "the end of the leftover processes", 5.0)


def test_next_rehearsal_removes_leftovers_of_a_killed_rehearsal(start_rehearsal: StartRehearsal) -> None:
    killed = start_rehearsal("killed")
    killed.wait_for_phase("start")
    kill(killed)
    assert_no_leftovers(killed)  # it was killed before it had the lock
    killed = start_rehearsal("killed")
    killed.wait_for_phase("account")
    kill(killed)
    for phase in ("preview", "resources", "destroy", "startup"):
        following = start_rehearsal("killed", PHASE_JOBS.get(phase, "endless"))
        assert_leftovers_removed(killed, following)
        following.wait_for_phase(phase)
        kill(following)
        killed = following
    other = start_rehearsal("unaffected")
    other.wait_for_phase("resources")
    assert "earlier rehearsal" not in other.stderr()
    other.send_signal(signal.SIGINT)
    assert other.wait_for_exit().report["errors"] == [INTERRUPTED]
    assert_no_leftovers(other)
    remove_leftovers_and_interrupt(start_rehearsal, killed)


def remove_leftovers_and_interrupt(start_rehearsal: StartRehearsal, killed: RehearsalProcess) -> None:
    """Start another rehearsal of the stack, which removes the leftovers, and interrupt it."""
    following = start_rehearsal(killed.stack)
    assert_leftovers_removed(killed, following)
    following.wait_for_phase("account")
    following.send_signal(signal.SIGTERM)
    assert following.wait_for_exit().report["errors"] == [INTERRUPTED]
    assert_no_leftovers(following)


def test_nodes_of_a_killed_rehearsal_are_removed_in_any_phase(start_rehearsal: StartRehearsal) -> None:
    phases = ["launch", "training", "checkpoint"]
    running = {phase: start_rehearsal(f"killed-{phase}", PHASE_JOBS.get(phase, "endless")) for phase in phases}
    for phase in phases:
        running[phase].wait_for_phase(phase)
        kill(running[phase])
    for killed in running.values():
        remove_leftovers_and_interrupt(start_rehearsal, killed)


def test_second_signal_exits_immediately_and_the_next_rehearsal_removes_leftovers(
    start_rehearsal: StartRehearsal,
) -> None:
    running = start_rehearsal("two-signals", "refused")
    running.wait_for_phase("destroy")
    (aws,) = [process for process in running.family if "rehearsal.aws" in command_line(process)]
    aws.suspend()  # so that destroy waits for responses
    running.send_signal(signal.SIGTERM)

    def exits_after_another_signal() -> bool:
        if running.process.poll() is None:
            running.send_signal(signal.SIGTERM)
        return running.process.poll() is not None

    eventually(exits_after_another_signal, "the exit after a second signal", 10.0)
    ended = running.wait_for_exit()
    assert (ended.exit_status, ended.report) == (130, {})
    assert ended.stderr.splitlines()[-1].startswith("rehearsal: interrupted twice, exits without destroy")
    assert "Traceback" not in ended.stderr
    assert aws in running_processes(running)
    remove_leftovers_and_interrupt(start_rehearsal, running)
