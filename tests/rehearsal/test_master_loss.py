"""The loss of the node with rank 0: the next attempt has another master, and a replacement."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from tests.rehearsal.running import assert_no_leftovers, rehearsal_starter
from tests.rehearsal.test_scale_out import ScaleOutRehearsal

pytestmark = pytest.mark.slow
# All ranks add a number ten times per second.
ADDING = """\
import os, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
print("attempt", os.environ["TRAINYARD_ATTEMPT"], "rank", dist.get_rank(), "on", os.environ["TRAINYARD_NODE"],
      "master", os.environ["MASTER_ADDR"], flush=True)
while True:
    dist.all_reduce(torch.ones(1))
    time.sleep(0.1)
"""


class AddingRehearsal(ScaleOutRehearsal):
    """A rehearsal of two nodes whose ranks need each other."""

    worker_count: ClassVar[int] = 2

    def ranks(self, attempt: int) -> dict[int, tuple[str, str]]:
        """Return rank -> (node, address of the master) in an attempt."""
        output = self.run_cli("logs", "--source", "stdout").stdout
        lines = re.findall(rf"attempt {attempt} rank (\d+) on (\S+) master (\S+)", output)
        return {int(rank): (node, master) for rank, node, master in lines}

    def terminate(self, node: str) -> None:
        """Terminate an instance in EC2, without its lifecycle hook."""
        self.client("ec2").terminate_instances(InstanceIds=[node])


@pytest.fixture
def adding(tree_without_checks: Path) -> Iterator[AddingRehearsal]:
    with rehearsal_starter(tree_without_checks, AddingRehearsal) as start:
        running = start("adding", "adding", script=ADDING)
        yield running
        running.send_signal(signal.SIGINT)
        running.wait_for_exit()
        assert_no_leftovers(running)


def test_next_attempt_after_the_loss_of_the_master_has_another_master(adding: AddingRehearsal) -> None:
    adding.wait_for_output("started: 2 processes on 2 nodes")
    adding.wait_until("the output of both ranks", lambda: len(adding.ranks(1)) == 2)
    (lost, lost_master), (survivor, _) = (adding.ranks(1)[rank] for rank in (0, 1))
    adding.terminate(lost)
    adding.wait_until("the second attempt", lambda: len(adding.ranks(2)) == 2)
    (first, master), (second, other_master) = (adding.ranks(2)[rank] for rank in (0, 1))
    assert first == survivor
    assert second not in {lost, survivor}
    assert master == other_master != lost_master
