"""Nodes are verified before a rehearsed job: who hangs is named, who is broken is replaced, and the job starts."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest

from rehearsal.hypervisor.processes import lives, marked
from tests.rehearsal.running import Ended, Running, beginning, nothing_left

SCRIPT = "print('well')\n"  # the checks start torch often enough
START_SECONDS = 420.0


class Checked(Running):
    """Two nodes. `hung` has a process that stops in the first check; `broken` can't take part in the two after it."""

    # torch is imported three times on each core in a check
    launch_settings: ClassVar[dict[str, Any]] = {"verify_minutes": 0.75}
    workers_wanted: ClassVar[int] = 2
    hung = broken = ""

    def meddle(self) -> None:
        self.says("of 2 launched:")
        (run,) = re.findall(r"run +(\S+), lease of", self.told())
        (launched,) = re.findall(r"2 of 2 launched: (\S+), (\S+)", self.told())
        self.hung, self.broken = launched
        self.until("both nodes' boot", lambda: all(f"{node}  configuring itself" in self.told() for node in launched))
        place = self.root(self.broken) / "opt/trainyard/runs" / run
        place.mkdir(parents=True)
        for number in (2, 3):
            (place / f"check-{number:04d}").touch()  # where the check's folder would be
        self.until("a process to stop", self.stop_one)

    def root(self, node: str) -> Path:
        return self.folder / "nodes" / node

    def stop_one(self) -> bool:
        """The node's process of the check, once it has said on the disk that it starts torch."""
        if not any(self.root(self.hung).glob("opt/trainyard/runs/*/check-0001/process-0.json")):
            return False
        for one in marked(self.folder, self.root(self.hung)):
            if lives(one) and "RANK" in environment(one) and "trainyard.node.health_check" in one.cmdline():
                one.send_signal(signal.SIGSTOP)
                return True
        return False


def environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except psutil.Error:
        return {}


@pytest.fixture(scope="module")
def ended(quick_tree: Path) -> Iterator[tuple[Checked, Ended]]:
    with beginning(quick_tree, Checked) as begin:
        running = begin("verified", "well", script=SCRIPT)
        running.meddle()
        running.until("the job's start", lambda: "started: 2 processes on 2 nodes" in running.told(), START_SECONDS)
        yield running, running.ends()
        nothing_left(running)


def checks(ended: Ended) -> list[str]:
    """What the launch said of each check at its end."""
    return re.findall(r"verification +check \d+: (.+)", ended.told)


def test_a_node_that_hangs_is_named(ended: tuple[Checked, Ended]) -> None:
    running, end = ended
    first = checks(end)[0]
    assert re.fullmatch(rf"{running.hung}: process 0 did not end: [\w ]+. Checked once more", first)
    assert re.search(rf"{running.broken} +check 1: waited in vain for", end.told)


def test_a_node_that_fails_twice_is_replaced_and_the_job_starts(ended: tuple[Checked, Ended]) -> None:
    running, end = ended
    _, second, third, last = checks(end)
    assert second.startswith(f"{running.broken}: the check can't begin: NotADirectoryError")
    assert third.startswith(f"{running.broken} failed twice: the check can't begin")
    assert third.endswith("Marked unhealthy: its group replaces it")
    assert last == "all 2 nodes are as they should be"
    assert end.status == 0, end.told
    assert {one["type"]: one["instances"] for one in end.report["billed"]}["c7i.xlarge"] == 3
    assert end.report["leaked"] == []
