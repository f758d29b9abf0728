"""Scale-out of a run, as `pulumi up` does it: the manifest changes, then `trainyard launch --update` adds nodes."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rehearsal.aws.faults import Capacity
from tests.polling import eventually
from tests.rehearsal.conftest import clean_environment
from tests.rehearsal.running import RehearsalProcess, assert_no_leftovers, rehearsal_starter
from trainyard.models.layout import MANIFEST

pytestmark = pytest.mark.slow
# A job that prints its world size and its start count, and saves its count when a checkpoint is requested.
COUNTING = """\
import os, pathlib, time
import boto3
bucket, _, prefix = os.environ["CHECKPOINT_URI"].removeprefix("s3://").partition("/")
s3 = boto3.client("s3")
saved = s3.list_objects_v2(Bucket=bucket, Prefix=prefix).get("Contents", [])
count = max((int(item["Key"].rpartition("-")[2]) for item in saved), default=0)
request = pathlib.Path(os.environ["CHECKPOINT_REQUEST"])
print("world size", os.environ["WORLD_SIZE"], "from", count, flush=True)
while True:
    count += 1
    if request.exists():
        s3.put_object(Bucket=bucket, Key=f"{prefix}at-{count}", Body=b"x")
        request.unlink()
    time.sleep(0.1)
"""


class ScaleOutRehearsal(RehearsalProcess):
    """A rehearsal whose job starts on one node, with the operator's actions to add nodes."""

    def set_node_count(self, nodes: int) -> None:
        """Change the account as the Pulumi program does when `nodes` has increased."""
        s3 = self.client("s3")
        (bucket,) = [item["Name"] for item in s3.list_buckets()["Buckets"] if "staging" in item["Name"]]
        manifest: dict[str, Any] = json.loads(s3.get_object(Bucket=bucket, Key=MANIFEST)["Body"].read())
        manifest["groups"][0]["nodes"] = manifest["groups"][0]["max_size"] = nodes
        s3.put_object(Bucket=bucket, Key=MANIFEST, Body=json.dumps(manifest).encode())

    def run_cli(self, command: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run a `trainyard` command in the rehearsal's account."""
        return subprocess.run(
            [sys.executable, "-m", "trainyard", command, "--stack", self.stack, *arguments],
            cwd=self.tree,
            env=clean_environment() | self.aws().environment(),
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    def job_output(self) -> list[str]:
        """Return the lines of the job's stdout: world size and start count."""
        return re.findall(r"world size \d from \d+", self.run_cli("logs", "--source", "stdout").stdout)

    def workers(self) -> list[str]:
        """Return the ids of the running workers."""
        running = [item for item in self.aws().instances() if item.state == "running"]
        return [item.id for item in running if item.tags["trainyard:role"] == "workers"]


@pytest.fixture(scope="module")
def rehearsal(tree_without_checks: Path) -> Iterator[ScaleOutRehearsal]:
    """A rehearsal whose job runs on one node; it is interrupted after the tests."""
    with rehearsal_starter(tree_without_checks, ScaleOutRehearsal) as start:
        running = start("scale-out", "counting", script=COUNTING)
        running.wait_for_phase("training")
        yield running
        running.send_signal(signal.SIGINT)
        running.wait_for_exit()
        assert_no_leftovers(running)


def test_failed_scale_out_does_not_affect_the_run(rehearsal: ScaleOutRehearsal) -> None:
    (original,) = rehearsal.workers()
    rehearsal.set_node_count(2)
    rehearsal.aws().inject(Capacity(limit=1, instance_type="c7i.xlarge"))
    failed = rehearsal.run_cli("launch", "--update")
    rehearsal.aws().clear_faults()
    assert failed.returncode == 1
    assert "0 of 1 requested nodes: InsufficientInstanceCapacity" in failed.stderr
    assert "without workers" not in failed.stderr
    assert "continues with its 1 node" in failed.stderr
    assert rehearsal.workers() == [original]
    eventually(lambda: bool(rehearsal.job_output()), "the output of the rank")  # logs are uploaded every two seconds
    assert rehearsal.job_output() == ["world size 1 from 0"]


def test_successful_scale_out_continues_from_a_checkpoint(rehearsal: ScaleOutRehearsal) -> None:
    (original,) = rehearsal.workers()
    rehearsal.set_node_count(2)
    launched = rehearsal.run_cli("launch", "--update")
    assert launched.returncode == 0, launched.stderr
    assert sorted(json.loads(launched.stdout)["nodes"]) == sorted(rehearsal.workers())
    assert original in rehearsal.workers()
    eventually(lambda: len(rehearsal.job_output()) >= 3, "the output of the ranks")
    first, *later = sorted(rehearsal.job_output())  # logs are sorted by instance id, which is random
    assert first == "world size 1 from 0"
    assert all(re.fullmatch(r"world size 2 from [1-9]\d*", line) for line in later)
