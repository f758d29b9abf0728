"""Health check before the job: a hanging node is reported, a broken node is replaced, and the job starts."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest

from rehearsal.hypervisor.processes import find_processes, is_alive
from tests.rehearsal.running import CompletedRehearsal, RehearsalProcess, assert_no_leftovers, rehearsal_starter

pytestmark = pytest.mark.slow

SCRIPT = "print('done')\n"  # without torch, which the health checks already start
START_SECONDS = 420.0


class CheckedRehearsal(RehearsalProcess):
    """Two nodes: `hung` has a process that stops in the first check, and `broken` fails the second and third check."""

    # a check imports torch three times on each core
    launch_settings: ClassVar[dict[str, Any]] = {"health_check_timeout_minutes": 0.75}
    worker_count: ClassVar[int] = 2
    hung = broken = ""

    def break_nodes(self) -> None:
        """Break both nodes before the first check."""
        self.wait_for_output("of 2 launched:")
        (run,) = re.findall(r"run +(\S+), lease of", self.stderr())
        (launched,) = re.findall(r"2 of 2 launched: (\S+), (\S+)", self.stderr())
        self.hung, self.broken = launched
        self.wait_until(
            "the boot of both nodes",
            lambda: all(f"{node}  node playbook started" in self.stderr() for node in launched),
        )
        run_folder = self.root(self.broken) / "opt/trainyard/runs" / run
        run_folder.mkdir(parents=True)
        for number in (2, 3):
            (run_folder / f"check-{number:04d}").touch()  # a file at the path of the folder that the check creates
        self.wait_until("a process to stop", self.stop_check_process)

    def root(self, node: str) -> Path:
        """Return the root folder of a node."""
        return self.folder / "nodes" / node

    def stop_check_process(self) -> bool:
        """Stop a process of the check, once its status file shows that it starts torch. Returns success."""
        if not any(self.root(self.hung).glob("opt/trainyard/runs/*/check-0001/reports/process-0.json")):
            return False
        for process in find_processes(self.folder, self.root(self.hung)):
            is_rank = is_alive(process) and "RANK" in environment(process)
            if is_rank and "trainyard.node.health_check" in process.cmdline():
                process.send_signal(signal.SIGSTOP)
                return True
        return False


def environment(process: psutil.Process) -> dict[str, str]:
    """Return the environment of a process; empty if it has ended."""
    try:
        return process.environ()
    except psutil.Error:
        return {}


@pytest.fixture(scope="module")
def ended(tree_without_checks: Path) -> Iterator[tuple[CheckedRehearsal, CompletedRehearsal]]:
    """The process of the rehearsal, and its result."""
    with rehearsal_starter(tree_without_checks, CheckedRehearsal) as start:
        running = start("health-check", "done", script=SCRIPT)
        running.break_nodes()
        running.wait_until(
            "the start of the job", lambda: "started: 2 processes on 2 nodes" in running.stderr(), START_SECONDS
        )
        yield running, running.wait_for_exit()
        assert_no_leftovers(running)


def check_results(ended: CompletedRehearsal) -> list[str]:
    """Return the lines of the launch about completed checks."""
    return re.findall(r"controller +health check \d+: (.+)", ended.stderr)


def test_hanging_node_is_reported(ended: tuple[CheckedRehearsal, CompletedRehearsal]) -> None:
    running, end = ended
    first = check_results(end)[0]
    assert re.fullmatch(rf"{running.hung}: process 0 did not complete: [\w ]+. The health check is repeated", first)
    assert re.search(rf"{running.broken} +health check 1: waited for nodes that did not arrive: ", end.stderr)


def test_node_that_fails_twice_is_replaced_and_the_job_starts(
    ended: tuple[CheckedRehearsal, CompletedRehearsal],
) -> None:
    running, end = ended
    _, second, third, last = check_results(end)
    assert second.startswith(f"{running.broken}: the health check cannot start: NotADirectoryError")
    assert third.startswith(f"{running.broken} failed twice: the health check cannot start")
    assert third.endswith("Marked unhealthy: the group replaces it")
    assert last == "all 2 nodes are healthy"
    assert end.exit_status == 0, end.stderr
    assert {entry["type"]: entry["instances"] for entry in end.report["billed"]}["c7i.xlarge"] == 3
    assert end.report["leaked"] == []
