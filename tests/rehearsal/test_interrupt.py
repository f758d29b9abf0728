"""A rehearsal that is stopped in any of its phases: what was made goes, the report says so, nothing stays."""

import signal
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from tests.rehearsal.conftest import rehearsed
from tests.rehearsal.running import INTERRUPTED, JOB_OF, Begin, Ended, Running, beginning, nothing_left

PREVIEWED = "AWS resources to make"  # said before the first of them is begun
SIGNALS = [signal.SIGINT, signal.SIGTERM]


@pytest.fixture
def begin(quick_tree: Path) -> Iterator[Begin]:
    with beginning(quick_tree, Running) as begin:
        yield begin


def check_taken_down(running: Running, errors: tuple[str, ...] = ()) -> Ended:
    ended = running.ends()
    assert ended.status == 1, ended.told
    assert "Traceback" not in ended.told
    report = ended.report
    assert [error.splitlines()[0] for error in report["errors"]] == [INTERRUPTED, *errors], ended.told
    # All of one bucket stays and counts once a resource.
    assert report["resources_created"] == report["resources_deleted"] + len(report["retained"])
    nothing_left(running)
    return ended


@pytest.mark.parametrize("number", SIGNALS)
def test_before_anything_is_made_it_just_ends(begin: Begin, number: int) -> None:
    running = begin("early")
    running.reaches("start")
    running.send(number)
    ended = running.ends()
    assert (ended.status, ended.told) == (1, "rehearsal: interrupted: nothing was made\n")


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("phase", ["account", "preview", "resources", "bring-up"])
def test_what_was_made_goes(begin: Begin, phase: str, number: int) -> None:
    running = begin("interrupted")
    running.hold(phase)
    only_planned = PREVIEWED not in running.told()
    running.send(number)
    running.go_on()
    ended = check_taken_down(running)
    assert ended.report["leaked"] == []
    made = ended.report["resources_created"]
    assert made == 0 if only_planned else made > 0 or phase in {"account", "preview"}  # held too late on a busy machine


@pytest.mark.parametrize("number", SIGNALS)
def test_a_destroy_that_is_cut_is_repeated(begin: Begin, number: int) -> None:
    running = begin("cut", "refused")
    running.hold("destroy")
    in_time = "DeleteVpc" not in running.calls()  # one of the last; a busy machine may be past it
    running.send(number)
    running.go_on()
    data = running.told().rpartition("s3://")[2].split()[0]
    why = f"trainyard: job.resume = 'no-such-run': that run left no checkpoint in s3://{data}"
    ended = check_taken_down(running, (why,))
    assert f"{INTERRUPTED}, destroy is repeated" in ended.told or not in_time
    assert ended.report["resources_deleted"] > 30
    assert ended.report["leaked"] == []


@pytest.mark.parametrize("number", SIGNALS)
def test_nodes_go_in_whatever_they_do(begin: Begin, number: int) -> None:
    """Side by side: one whose node comes up, one whose job runs, one whose job writes a checkpoint."""
    phases = ["launch", "training", "checkpoint"]
    running = {phase: begin(phase, JOB_OF.get(phase, "endless")) for phase in phases}
    for phase in phases:
        running[phase].reaches(phase)
        assert len(list(running[phase].folder.glob("nodes/*"))) > 0
        running[phase].send(number)
    for phase in phases:
        check_taken_down(running[phase])


def test_what_a_hand_made_meanwhile_is_seen(begin: Begin) -> None:
    running = begin("by-hand")
    running.reaches("resources")
    keys = {"aws_access_key_id": "AKIASOMEBODY", "aws_secret_access_key": "else"}
    endpoint = f"http://127.0.0.1:{running.port()}"
    ec2 = boto3.client("ec2", endpoint_url=endpoint, region_name="us-east-1", **keys)
    volume = ec2.create_volume(AvailabilityZone="us-east-1a", Size=8)["VolumeId"]
    running.send(signal.SIGTERM)
    ended = check_taken_down(running, (f"leaked: ec2 volume {volume}",))
    assert [(one["kind"], one["id"]) for one in ended.report["leaked"]] == [("volume", volume)]


def test_what_aws_refuses_is_told_with_its_resource(tree: Path) -> None:
    denied = {"REHEARSAL_DENY": "fsx:CreateFileSystem"}
    ended = rehearsed(tree, "--stack", "a100-cluster", "--nodes", "1", environment=denied, seconds=120)
    assert ended.status == 1
    report = ended.report
    (error,) = report["errors"]
    assert error.startswith("aws:fsx/lustreFileSystem:LustreFileSystem lustre: CreateFileSystem: AccessDenied")
    assert report["leaked"] == []
