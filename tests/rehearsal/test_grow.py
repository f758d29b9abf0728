"""More nodes for a run that goes on, as `pulumi up` gives them: the manifest changes, then the launch is updated."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from rehearsal.aws.faults import Capacity
from rehearsal.aws.process import EmulatedAws
from tests.polling import eventually
from tests.rehearsal.conftest import clean_environment
from tests.rehearsal.running import Running, beginning, nothing_left
from trainyard.models.layout import MANIFEST

# A job that tells how many it is and what it goes on from, and saves that when it is asked to.
COUNTING = """\
import os, pathlib, time
import boto3
bucket, _, prefix = os.environ["CHECKPOINT_URI"].removeprefix("s3://").partition("/")
s3 = boto3.client("s3")
saved = s3.list_objects_v2(Bucket=bucket, Prefix=prefix).get("Contents", [])
count = max((int(one["Key"].rpartition("-")[2]) for one in saved), default=0)
request = pathlib.Path(os.environ["CHECKPOINT_REQUEST"])
print("one of", os.environ["WORLD_SIZE"], "from", count, flush=True)
while True:
    count += 1
    if request.exists():
        s3.put_object(Bucket=bucket, Key=f"{prefix}at-{count}", Body=b"x")
        request.unlink()
    time.sleep(0.1)
"""


class Growing(Running):
    """A rehearsal whose job has started on one node, and its operator."""

    def aws(self) -> EmulatedAws:
        return EmulatedAws.attach(f"http://127.0.0.1:{self.port()}")

    def want(self, nodes: int) -> None:
        """What the program changes in the account when `nodes` has grown."""
        aws = self.aws()
        keys = {"aws_access_key_id": "AKIASOMEBODY", "aws_secret_access_key": "else", "region_name": aws.region}
        s3 = boto3.client("s3", endpoint_url=aws.endpoint, **keys)
        (bucket,) = [one["Name"] for one in s3.list_buckets()["Buckets"] if "staging" in one["Name"]]
        manifest: dict[str, Any] = json.loads(s3.get_object(Bucket=bucket, Key=MANIFEST)["Body"].read())
        manifest["groups"][0]["nodes"] = nodes
        s3.put_object(Bucket=bucket, Key=MANIFEST, Body=json.dumps(manifest).encode())
        boto3.client("autoscaling", endpoint_url=aws.endpoint, **keys).update_auto_scaling_group(
            AutoScalingGroupName=manifest["groups"][0]["autoscaling_group"], MaxSize=nodes
        )

    def operate(self, command: str, *words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "trainyard", command, "--stack", self.stack, *words],
            cwd=self.tree,
            env=clean_environment() | self.aws().environment(),
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    def job_told(self) -> list[str]:
        return re.findall(r"one of \d from \d+", self.operate("logs", "--source", "stdout").stdout)

    def workers(self) -> list[str]:
        """Those that run."""
        return [one.id for one in self.aws().instances() if one.autoscaling_group and one.state == "running"]


@pytest.fixture(scope="module")
def growing(quick_tree: Path) -> Iterator[Growing]:
    with beginning(quick_tree, Growing) as begin:
        running = begin("growing", "counting", script=COUNTING)
        running.reaches("training")
        yield running
        running.send(signal.SIGINT)
        running.ends()
        nothing_left(running)


def test_a_growth_that_fails_leaves_the_run_alone(growing: Growing) -> None:
    (old,) = growing.workers()
    growing.want(2)
    growing.aws().inject(Capacity(limit=1, instance_type="c7i.xlarge"))
    failed = growing.operate("launch", "--update")
    growing.aws().clear_faults()
    assert failed.returncode == 1
    assert "0 of 1 nodes could be launched, so none stays: InsufficientInstanceCapacity" in failed.stderr
    assert "goes on with its 1 nodes" in failed.stderr
    assert growing.workers() == [old]
    eventually(lambda: bool(growing.job_told()), "the rank's own words")  # logs come every two seconds
    assert growing.job_told() == ["one of 1 from 0"]


def test_a_growth_that_succeeds_goes_on_from_a_checkpoint(growing: Growing) -> None:
    (old,) = growing.workers()
    growing.want(2)
    grown = growing.operate("launch", "--update")
    assert grown.returncode == 0, grown.stderr
    assert sorted(json.loads(grown.stdout)["nodes"]) == sorted(growing.workers())
    assert old in growing.workers()
    eventually(lambda: len(growing.job_told()) >= 3, "the ranks' own words")
    first, *then = sorted(growing.job_told())  # logs come by instance, whose ids are random
    assert first == "one of 1 from 0"
    assert all(re.fullmatch(r"one of 2 from [1-9]\d*", words) for words in then)
