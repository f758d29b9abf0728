"""AWS terminates the workers when the lease ends, whichever component fails. The tests advance the account's clock."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from rehearsal.hypervisor.processes import find_processes, kill
from tests.polling import eventually
from tests.rehearsal.conftest import start_account
from tests.rehearsal.running import RehearsalProcess, assert_no_leftovers, find_descendants, rehearsal_starter

pytestmark = pytest.mark.slow

LEASE_SECONDS, HEARTBEAT_SECONDS = 20 * 60, 120
CONTROLLER = "trainyard-controller.service"


class LeasedRehearsal(RehearsalProcess):
    """A rehearsal of an endless job in an account whose clock the tests advance."""

    def instances(self, head: bool) -> dict[str, str]:
        """Return instance id -> state, of the head or of the workers."""
        records = [
            item for item in self.aws().instances() if item.tags.get("trainyard:stack") == f"trainyard/{self.stack}"
        ]
        return {item.id: item.state for item in records if (item.tags["trainyard:role"] == "head") == head}

    def worker_state(self) -> str:
        """Return the state of the only worker."""
        (state,) = self.instances(head=False).values()
        return state

    def advance_clock(self, seconds: float) -> None:
        """Advance the account's clock."""
        self.aws().advance_clock(seconds)

    def advance_to_lease_end(self) -> None:
        """Advance the clock past the lease, then past the heartbeat timeout of the lifecycle hook if it applies."""
        self.advance_clock(LEASE_SECONDS + 1)
        eventually(
            lambda: self.worker_state() != "running" or self.is_terminating(),
            "the termination of the worker by the lease",
        )
        if self.worker_state() != "terminated":
            self.advance_clock(HEARTBEAT_SECONDS + 1)

    def autoscaling(self) -> Any:
        """Return an Auto Scaling client of the account."""
        return self.client("autoscaling")

    def is_terminating(self) -> bool:
        """Return whether Auto Scaling is terminating the worker."""
        members = self.autoscaling().describe_auto_scaling_instances()["AutoScalingInstances"]
        workers = [member for member in members if member["InstanceId"] in self.instances(head=False)]
        return all(member["LifecycleState"].startswith("Terminating") for member in workers)

    def lease_end(self) -> float:
        """Return the Unix time at which the lease ends."""
        (action,) = self.autoscaling().describe_scheduled_actions()["ScheduledUpdateGroupActions"]
        end: float = action["StartTime"].timestamp()
        return end

    def wait_for_termination(self) -> None:
        """Wait until AWS has terminated the worker."""
        eventually(lambda: self.worker_state() == "terminated", "the termination of the worker")

    def head_root(self) -> Path:
        """Return the root folder of the head."""
        (head,) = self.instances(head=True)
        return self.folder / "nodes" / head

    def launch_process(self) -> psutil.Process:
        """Return the running process `trainyard launch`."""
        (process,) = find_descendants(self.process.pid, "-m", "trainyard", "launch")
        return process

    def node_processes(self, text: str) -> list[psutil.Process]:
        """Return the nodes' processes whose command line contains a text."""
        return [process for process in find_processes(self.folder) if _has_argument(process, text)]

    def suspend(self) -> None:
        """Suspend the rehearsal, as if the computer that runs `pulumi up` went to sleep."""
        self.process.send_signal(signal.SIGSTOP)

    def assert_destroys_after_resume(self) -> None:
        """Resume the rehearsal and assert that it destroys everything."""
        self.process.send_signal(signal.SIGCONT)
        assert self.wait_for_exit().exit_status == 1
        assert_no_leftovers(self)


def _has_argument(process: psutil.Process, text: str) -> bool:
    try:
        return any(text in argument for argument in process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


@pytest.fixture
def start(tree_without_checks: Path) -> Iterator[Callable[[str], LeasedRehearsal]]:
    """A function that starts a rehearsal of a stack in a separate account, whose clock the test advances."""
    with (
        start_account(tree_without_checks) as account,
        rehearsal_starter(tree_without_checks, LeasedRehearsal) as start_rehearsal,
    ):
        yield lambda stack: start_rehearsal(stack, account=account)


def test_lease_terminates_workers_after_the_head_fails(start: Callable[[str], LeasedRehearsal]) -> None:
    running = start("failed-head")
    running.wait_for_phase("training")
    kill(find_processes(running.folder, running.head_root()))
    assert running.worker_state() == "running"
    running.advance_clock(LEASE_SECONDS + 1)
    running.wait_for_termination()


def test_lease_terminates_workers_after_up_is_killed_during_the_launch(start: Callable[[str], LeasedRehearsal]) -> None:
    running = start("killed")
    running.wait_for_phase("launch")
    running.process.kill()
    running.process.wait()
    assert running.worker_state() == "running"
    running.advance_clock(LEASE_SECONDS - 60)
    assert running.worker_state() == "running"
    running.advance_clock(61)
    running.advance_clock(HEARTBEAT_SECONDS + 1)  # no agent runs that could complete the lifecycle action
    running.wait_for_termination()


def test_lease_terminates_workers_after_the_launch_is_killed_before_the_job_starts(
    start: Callable[[str], LeasedRehearsal],
) -> None:
    running = start("killed-launch")
    running.wait_for_phase("launch")
    running.suspend()
    running.launch_process().kill()
    assert (running.worker_state(), running.node_processes("train.py")) == ("running", [])
    running.advance_to_lease_end()
    running.wait_for_termination()
    running.assert_destroys_after_resume()


def test_restarted_controller_renews_the_lease_and_a_stopped_controller_does_not(
    start: Callable[[str], LeasedRehearsal],
) -> None:
    running = start("controller")
    running.wait_for_phase("training")
    (first,) = running.node_processes("trainyard.node.controller")
    lease_end = running.lease_end()
    first.kill()
    eventually(lambda: running.lease_end() > lease_end, "a lease renewal by the restarted controller")
    (second,) = running.node_processes("trainyard.node.controller")
    assert second != first

    root = running.head_root()
    unit = root / "etc/systemd/system" / CONTROLLER
    unit.write_text(unit.read_text().replace("Restart=always", "Restart=no"))
    systemctl = [str(root / "usr/bin/systemctl"), "daemon-reload"]
    subprocess.run(systemctl, env=os.environ | {"TRAINYARD_ROOT": str(root)}, check=True, timeout=30)
    second.kill()
    eventually(lambda: not running.node_processes("trainyard.node.controller"), "the exit of the controller")
    assert running.worker_state() == "running"
    running.advance_to_lease_end()
    running.wait_for_termination()
    assert running.node_processes("trainyard.node.controller") == []


def test_lease_terminates_workers_after_launch_controller_and_head_are_killed(
    start: Callable[[str], LeasedRehearsal],
) -> None:
    running = start("all-killed")
    running.wait_for_phase("launch")
    launch = running.launch_process()
    launch.suspend()  # otherwise it ends when the job runs
    running.wait_until("the start of the job", lambda: bool(running.node_processes("train.py")))
    running.suspend()
    kill(
        [
            launch,
            *running.node_processes("trainyard.node.controller"),
            *find_processes(running.folder, running.head_root()),
        ]
    )
    assert (running.worker_state(), len(running.node_processes("train.py")) > 0) == ("running", True)
    running.advance_to_lease_end()
    running.wait_for_termination()
    running.assert_destroys_after_resume()
