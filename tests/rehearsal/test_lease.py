"""The bill stops whoever dies: AWS itself ends the workers when the lease is over, on a clock that is jumped."""

import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import psutil
import pytest

from rehearsal.hypervisor.processes import kill, marked
from tests.polling import eventually
from tests.rehearsal.conftest import kept_account
from tests.rehearsal.running import Running, beginning, nothing_left, started

LEASE_SECONDS, HEARTBEAT_SECONDS = 20 * 60, 120
CONTROLLER = "trainyard-controller.service"


class Leased(Running):
    """A rehearsal of a job that does not end by itself, in an account whose clock is jumped."""

    def page(self, name: str, content: Any = None) -> Any:
        data = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(f"{self.account['AWS_ENDPOINT_URL']}/_rehearsal/{name}", data=data)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def instances(self, head: bool) -> dict[str, str]:
        """Instance -> state, of the head or of the workers."""
        mine = [one for one in self.page("instances") if one["tags"].get("trainyard:stack") == self.stack]
        return {one["id"]: one["state"] for one in mine if (one["autoscaling_group"] is None) == head}

    def worker(self) -> str:
        """The state of the only one."""
        (state,) = self.instances(head=False).values()
        return state

    def jump(self, seconds: float) -> None:
        self.page("clock", {"advance_seconds": seconds})

    def jump_to_the_end(self) -> None:
        """Past the lease; then past the heartbeat, since an agent that lives would take its time."""
        self.jump(LEASE_SECONDS + 1)
        eventually(lambda: self.worker() != "running" or self.leaving(), "the lease's end of the worker")
        if self.worker() != "terminated":
            self.jump(HEARTBEAT_SECONDS + 1)

    def autoscaling(self) -> Any:
        keys = {"aws_access_key_id": "AKIASOMEBODY", "aws_secret_access_key": "else"}
        endpoint = self.account["AWS_ENDPOINT_URL"]
        return boto3.client("autoscaling", endpoint_url=endpoint, region_name="us-east-1", **keys)

    def leaving(self) -> bool:
        found = self.autoscaling().describe_auto_scaling_instances()["AutoScalingInstances"]
        return all(one["LifecycleState"].startswith("Terminating") for one in found)

    def lease(self) -> float:
        """When it ends, Unix time."""
        (action,) = self.autoscaling().describe_scheduled_actions()["ScheduledUpdateGroupActions"]
        end: float = action["StartTime"].timestamp()
        return end

    def ended_by_aws(self) -> None:
        eventually(lambda: self.worker() == "terminated", "the end of the worker")

    def root(self) -> Path:
        """The head's."""
        (head,) = self.instances(head=True)
        return self.folder / "nodes" / head

    def launch(self) -> psutil.Process:
        """`trainyard launch`, which runs."""
        (found,) = started(self.process.pid, "-m", "trainyard", "launch")
        return found

    def running(self, word: str) -> list[psutil.Process]:
        """The nodes' processes with this word on their command line."""
        return [one for one in marked(self.folder) if _has(one, word)]

    def freeze(self) -> None:
        """As if the machine that holds `pulumi up` went to sleep: nobody there takes anything down, or takes notice."""
        self.process.send_signal(signal.SIGSTOP)

    def takes_down_when_awake(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        assert self.ends().status == 1
        nothing_left(self)


def _has(process: psutil.Process, word: str) -> bool:
    try:
        return any(word in part for part in process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


@pytest.fixture
def start(quick_tree: Path) -> Iterator[Callable[[str], Leased]]:
    """In an account of the test's own: its clock is jumped."""
    with kept_account(quick_tree) as account, beginning(quick_tree, Leased) as begin:
        yield lambda stack: begin(stack, account=account)


def test_a_dead_head_does_not_keep_its_workers(start: Callable[[str], Leased]) -> None:
    running = start("headless")
    running.reaches("training")
    kill(marked(running.folder, running.root()))
    assert running.worker() == "running"
    running.jump(LEASE_SECONDS + 1)
    running.ended_by_aws()


def test_an_up_killed_after_the_launch_does_not_keep_its_workers(start: Callable[[str], Leased]) -> None:
    running = start("killed")
    running.reaches("launch")
    running.process.kill()
    running.process.wait()
    assert running.worker() == "running"
    running.jump(LEASE_SECONDS - 60)
    assert running.worker() == "running"
    running.jump(61)
    running.jump(HEARTBEAT_SECONDS + 1)  # no agent lives that could complete the action
    running.ended_by_aws()


def test_a_launch_killed_before_the_job_has_started_does_not_keep_its_workers(start: Callable[[str], Leased]) -> None:
    running = start("launchless")
    running.reaches("launch")
    running.freeze()
    running.launch().kill()
    assert (running.worker(), running.running("train.py")) == ("running", [])
    running.jump_to_the_end()
    running.ended_by_aws()
    running.takes_down_when_awake()


def test_a_dead_controller_comes_back_and_renews_the_lease_and_without_it_the_workers_end(
    start: Callable[[str], Leased],
) -> None:
    running = start("uncontrolled")
    running.reaches("training")
    (first,) = running.running("trainyard.node.controller")
    lease = running.lease()
    first.kill()
    eventually(lambda: running.lease() > lease, "a lease that the next controller renewed")
    (second,) = running.running("trainyard.node.controller")
    assert second != first

    root = running.root()
    unit = root / "etc/systemd/system" / CONTROLLER
    unit.write_text(unit.read_text().replace("Restart=always", "Restart=no"))
    systemctl = [str(root / "usr/bin/systemctl"), "daemon-reload"]
    subprocess.run(systemctl, env=os.environ | {"TRAINYARD_ROOT": str(root)}, check=True, timeout=30)
    second.kill()
    eventually(lambda: not running.running("trainyard.node.controller"), "the end of the controller")
    assert running.worker() == "running"
    running.jump_to_the_end()
    running.ended_by_aws()
    assert running.running("trainyard.node.controller") == []


def test_launch_controller_and_head_killed_at_once_do_not_keep_workers(start: Callable[[str], Leased]) -> None:
    running = start("alone")
    running.reaches("launch")
    launch = running.launch()
    launch.suspend()  # else it has done its work once the job runs
    running.until("the job", lambda: bool(running.running("train.py")))
    running.freeze()
    kill([launch, *running.running("trainyard.node.controller"), *marked(running.folder, running.root())])
    assert (running.worker(), len(running.running("train.py")) > 0) == ("running", True)
    running.jump_to_the_end()
    running.ended_by_aws()
    running.takes_down_when_awake()
