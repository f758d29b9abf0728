"""A rehearsal that is interrupted in any phase destroys its resources, reports it, and leaves nothing behind."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rehearsal.conftest import run_rehearsal
from tests.rehearsal.running import (
    INTERRUPTED,
    PHASE_JOBS,
    CompletedRehearsal,
    RehearsalProcess,
    StartRehearsal,
    assert_no_leftovers,
    rehearsal_starter,
)

pytestmark = pytest.mark.slow

PREVIEWED = "AWS resources to create"  # printed before the first resource is created
SIGNALS = [signal.SIGINT, signal.SIGTERM]


@pytest.fixture
def start_rehearsal(tree_without_checks: Path) -> Iterator[StartRehearsal]:
    with rehearsal_starter(tree_without_checks, RehearsalProcess) as start_rehearsal:
        yield start_rehearsal


def assert_destroyed(running: RehearsalProcess, errors: tuple[str, ...] = ()) -> CompletedRehearsal:
    """Assert that the rehearsal reports the interrupt and has destroyed its resources. Returns its result."""
    ended = running.wait_for_exit()
    assert ended.exit_status == 130, ended.stderr
    assert "Traceback" not in ended.stderr
    report = ended.report
    assert [error.splitlines()[0] for error in report["errors"]] == [INTERRUPTED, *errors], ended.stderr
    # The retained bucket and its settings are separate Pulumi resources.
    assert report["resources_created"] == report["resources_deleted"] + len(report["retained"])
    assert_no_leftovers(running)
    return ended


@pytest.mark.parametrize("number", SIGNALS)
def test_interrupt_before_the_first_resource_exits_immediately(start_rehearsal: StartRehearsal, number: int) -> None:
    running = start_rehearsal("early")
    running.wait_for_phase("start")
    running.send_signal(number)
    ended = running.wait_for_exit()
    assert (ended.exit_status, ended.stderr) == (130, "rehearsal: interrupted: no resources were created\n")


@pytest.mark.parametrize(
    ("phase", "number"), [("account", signal.SIGINT), ("preview", signal.SIGTERM), ("resources", signal.SIGINT)]
)
def test_interrupt_destroys_created_resources(start_rehearsal: StartRehearsal, phase: str, number: int) -> None:
    running = start_rehearsal("interrupted")
    running.pause_at_phase(phase)
    only_planned = PREVIEWED not in running.stderr()
    running.send_signal(number)
    running.resume()
    ended = assert_destroyed(running)
    assert ended.report["leaked"] == []
    created = ended.report["resources_created"]
    # On a busy machine the process may be paused after the phase.
    assert created == 0 if only_planned else created > 0 or phase in {"account", "preview"}


def test_interrupted_destroy_is_repeated(start_rehearsal: StartRehearsal) -> None:
    running = start_rehearsal("interrupted-destroy", "refused")
    running.pause_at_phase("destroy")
    # The VPC is deleted late. On a busy machine it may already be deleted.
    in_time = "DeleteVpc" not in running.journal_text()
    running.send_signal(signal.SIGINT)
    running.resume()
    data = running.stderr().partition("no checkpoint in s3://")[2].split()[0].rstrip(".")
    message = f"job.resume = 'no-such-run': that run has no checkpoint in s3://{data}"
    reason = f"{message}. Name another run, or remove job.resume"
    ended = assert_destroyed(running, (reason,))
    assert f"{INTERRUPTED}; destroy runs again" in ended.stderr or not in_time
    assert ended.report["resources_deleted"] > 30
    assert ended.report["leaked"] == []


def test_interrupt_terminates_nodes_in_any_phase(start_rehearsal: StartRehearsal) -> None:
    """Three rehearsals at once: a node starts, a job runs, a job writes a checkpoint."""
    phases = ["launch", "training", "checkpoint"]
    running = {phase: start_rehearsal(phase, PHASE_JOBS.get(phase, "endless")) for phase in phases}
    for phase in phases:
        running[phase].wait_for_phase(phase)
        assert len(list(running[phase].folder.glob("nodes/*"))) > 0
        running[phase].send_signal(signal.SIGTERM)
    for phase in phases:
        ended = assert_destroyed(running[phase])
        assert ended.report["run"], "the run of an interrupted rehearsal is in its report"
        assert (running[phase].folder / "node-logs.txt").stat().st_size > 0


def test_volume_created_manually_is_reported_as_leaked(start_rehearsal: StartRehearsal) -> None:
    running = start_rehearsal("manual-volume")
    running.wait_for_phase("resources")
    volume = running.client("ec2").create_volume(AvailabilityZone="us-east-1a", Size=8)["VolumeId"]
    running.send_signal(signal.SIGTERM)
    ended = assert_destroyed(running, (f"leaked: ec2 volume {volume}",))
    assert [(leak["kind"], leak["id"]) for leak in ended.report["leaked"]] == [("volume", volume)]


def test_denied_api_call_is_reported_with_its_resource(tree: Path) -> None:
    denied = {"REHEARSAL_DENY": "fsx:CreateFileSystem"}
    ended = run_rehearsal(tree, "--stack", "a100-cluster", "--nodes", "1", environment=denied, timeout_seconds=120)
    assert ended.exit_status == 1
    report = ended.report
    (error,) = report["errors"]
    name = "aws:fsx/lustreFileSystem:LustreFileSystem filesystem-lustre"
    assert error.startswith(f"{name}: CreateFileSystem: AccessDenied")
    assert report["leaked"] == []
