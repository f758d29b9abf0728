"""The bill stops whoever dies: AWS itself ends the workers when the lease is over, on a clock that is jumped."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rehearsal.hypervisor.process import sweep
from rehearsal.hypervisor.processes import kill, marked
from tests.polling import eventually
from tests.rehearsal.conftest import clean_environment, kept_account, write_stack

LEASE_SECONDS, HEARTBEAT_SECONDS = 20 * 60, 120


class Running:
    """A rehearsal of a job that does not end by itself."""

    def __init__(self, tree: Path, stack: str, account: dict[str, str]) -> None:
        source = tree / "examples/endless"
        source.mkdir(exist_ok=True)
        (source / "train.py").write_text("import time\nwhile True:\n    time.sleep(1)\n")
        job = {"name": "endless", "dataset": "none", "source": "examples/endless", "command": ["train.py"]}
        write_stack(tree, stack, nodes=1, job=job)
        self.stack, self.folder, self.endpoint = stack, tree / "build/rehearsal" / stack, account["AWS_ENDPOINT_URL"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rehearsal", "run", "--stack", stack],
            cwd=tree,
            env=clean_environment() | account,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def says(self, words: str) -> None:
        assert self.process.stderr is not None
        told = []
        for line in self.process.stderr:
            told.append(line)
            if words in line:
                return
        raise AssertionError(f"it ended without {words!r}: {''.join(told)}")

    def page(self, name: str, content: Any = None) -> Any:
        data = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(f"{self.endpoint}/_rehearsal/{name}", data=data)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def instances(self, head: bool) -> dict[str, str]:
        """Instance -> state, of the head or of the workers."""
        mine = [one for one in self.page("instances") if one["tags"].get("trainyard:stack") == self.stack]
        return {one["id"]: one["state"] for one in mine if (one["autoscaling_group"] is None) == head}

    def jump(self, seconds: float) -> None:
        self.page("clock", {"advance_seconds": seconds})

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGINT)
        try:
            self.process.wait(90)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            assert self.process.stderr is not None
            self.process.stderr.close()
            sweep(self.folder)


@pytest.fixture
def start(tree: Path) -> Iterator[Callable[[str], Running]]:
    """In an account of the test's own: its clock is jumped."""
    with kept_account(tree) as account:
        made: list[Running] = []

        def run(stack: str) -> Running:
            made.append(Running(tree, stack, account))
            return made[-1]

        yield run
        for one in made:
            one.close()


def test_a_dead_head_does_not_keep_its_workers(start: Callable[[str], Running]) -> None:
    running = start("headless")
    running.says("job                  started")
    (head,) = running.instances(head=True)
    kill(marked(running.folder, running.folder / "nodes" / head))
    assert list(running.instances(head=False).values()) == ["running"]
    running.jump(LEASE_SECONDS + 1)
    eventually(lambda: list(running.instances(head=False).values()) == ["terminated"], "the end of the worker")


def test_an_up_killed_after_the_launch_does_not_keep_its_workers(start: Callable[[str], Running]) -> None:
    running = start("killed")
    running.says("1 of 1 launched")
    running.process.kill()
    running.process.wait()
    assert "running" in running.instances(head=False).values()
    running.jump(LEASE_SECONDS - 60)
    assert "running" in running.instances(head=False).values()
    running.jump(61)
    running.jump(HEARTBEAT_SECONDS + 1)  # no agent lives that could complete the action
    eventually(lambda: list(running.instances(head=False).values()) == ["terminated"], "the end of the worker")
