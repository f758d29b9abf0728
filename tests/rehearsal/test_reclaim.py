"""A run on an interruptible reservation: its owner reclaims one of two nodes, and later allocates it again."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rehearsal.aws.faults import Reclaim
from tests.polling import eventually
from tests.rehearsal.running import assert_no_leftovers, rehearsal_starter
from tests.rehearsal.test_scale_out import COUNTING, ScaleOutRehearsal

pytestmark = pytest.mark.slow


class ReclaimedRehearsal(ScaleOutRehearsal):
    """A rehearsal with two nodes in an interruptible reservation."""

    worker_count: ClassVar[int] = 2
    capacity: ClassVar[dict[str, Any]] = {"reservation": {"id": "cr-0123456789abcdef0", "interruptible": True}}

    def checkpoints(self) -> list[str]:
        """Return the keys of the checkpoints in the data bucket."""
        s3 = self.client("s3")
        buckets = [item["Name"] for item in s3.list_buckets()["Buckets"] if "data" in item["Name"]]
        objects = [item for bucket in buckets for item in s3.list_objects_v2(Bucket=bucket).get("Contents", [])]
        return [item["Key"] for item in objects if "/checkpoints/" in item["Key"]]


@pytest.fixture
def reclaimed(tree_without_checks: Path) -> Iterator[ReclaimedRehearsal]:
    """A rehearsal whose job runs on two nodes; it is interrupted after the test."""
    with rehearsal_starter(tree_without_checks, ReclaimedRehearsal) as start:
        running = start("reclaimed", "counting", script=COUNTING)
        running.wait_for_output("started: 2 processes")
        yield running
        running.send_signal(signal.SIGINT)
        running.wait_for_exit()
        assert_no_leftovers(running)


def test_run_continues_from_the_checkpoint_of_the_notice(reclaimed: ReclaimedRehearsal) -> None:
    original = reclaimed.workers()
    assert len(original) == 2
    assert reclaimed.checkpoints() == []
    reclaimed.aws().inject(Reclaim(seconds=0, return_seconds=300))
    eventually(lambda: bool(reclaimed.checkpoints()), "a checkpoint in the two minutes of the notice", 60.0)
    assert sorted(reclaimed.workers()) == sorted(original)
    reclaimed.aws().advance_clock(125)
    assert len(reclaimed.workers()) == 1
    reclaimed.aws().advance_clock(300)
    eventually(lambda: len(reclaimed.workers()) == 2, "a node in the reservation again")
    eventually(lambda: len(reclaimed.job_output()) >= 3, "the output of the second attempt", 120.0)
    later = [line for line in reclaimed.job_output() if line != "world size 2 from 0"]
    assert later
    assert all(re.fullmatch(r"world size 2 from [1-9]\d*", line) for line in later)
