"""A rehearsal that is stopped in the middle: what was made goes, the report says so, nothing runs on."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3

from rehearsal.hypervisor.processes import marked
from tests.rehearsal.conftest import clean_environment, write_stack


@dataclass(frozen=True)
class Stopped:
    """How it ended."""

    status: int
    told: str
    report: dict[str, Any]


def stopped(tree: Path, stack: str, number: int, before: Callable[[Path], None] = lambda folder: None) -> Stopped:
    """Start a rehearsal of `stack` and send its process group the signal while the head configures itself."""
    write_stack(tree, stack)
    process = subprocess.Popen(
        [sys.executable, "-m", "rehearsal", "run", "--stack", stack, "--json"],
        cwd=tree,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "configuring itself" in line:
            before(tree / "build/rehearsal" / stack)
            os.killpg(process.pid, number)  # as a terminal does
            break
    stdout, stderr = process.communicate(timeout=120)
    return Stopped(process.returncode, "".join(lines) + stderr, json.loads(stdout))


def test_ctrl_c_takes_down_what_was_made(tree: Path) -> None:
    ended = stopped(tree, "interrupted", signal.SIGINT)
    assert ended.status == 1, ended.told
    assert ended.report["errors"] == ["interrupted: what was made goes now"]
    assert ended.report["resources_created"] == ended.report["resources_deleted"] + len(ended.report["retained"])
    assert ended.report["leaked"] == []
    assert "Traceback" not in ended.told
    assert marked(tree / "build/rehearsal/interrupted") == []


def test_sigterm_does_too_and_what_a_hand_made_meanwhile_is_seen(tree: Path) -> None:
    made = []

    def by_hand(folder: Path) -> None:
        endpoint = f"http://127.0.0.1:{(folder / 'aws/port').read_text()}"
        keys = {"aws_access_key_id": "AKIASOMEBODY", "aws_secret_access_key": "else"}
        ec2 = boto3.client("ec2", endpoint_url=endpoint, region_name="us-east-1", **keys)
        made.append(ec2.create_volume(AvailabilityZone="us-east-1a", Size=8)["VolumeId"])

    ended = stopped(tree, "terminated", signal.SIGTERM, by_hand)
    assert ended.status == 1, ended.told
    assert [(one["kind"], one["id"]) for one in ended.report["leaked"]] == [("volume", made[0])]
    assert ended.report["errors"] == ["interrupted: what was made goes now", f"leaked: ec2 volume {made[0]}"]


def test_what_aws_refuses_is_told_with_its_resource(tree: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rehearsal", "run", "--stack", "a100-cluster", "--nodes", "1", "--json"],
        cwd=tree,
        env=clean_environment() | {"REHEARSAL_DENY": "fsx:CreateFileSystem"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    report = json.loads(done.stdout)
    (error,) = report["errors"]
    assert error.startswith("aws:fsx/lustreFileSystem:LustreFileSystem lustre: CreateFileSystem: AccessDenied")
    assert report["leaked"] == []
