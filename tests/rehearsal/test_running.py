"""Finding the processes of a rehearsal: a child between fork and exec does not count."""

import subprocess
import sys

import psutil

from tests.polling import eventually
from tests.rehearsal.running import find_descendants

FORKS = "import os, sys\nos.fork()\nsys.stdin.read()"


def test_forked_child_does_not_count_as_another_process() -> None:
    command = [sys.executable, "-c", FORKS, "rehearsal", "run"]
    with subprocess.Popen(["sh", "-c", '"$@"; exit', "sh", *command], stdin=subprocess.PIPE) as shell:
        family = psutil.Process(shell.pid)
        eventually(lambda: len(family.children(recursive=True)) == 2, "the process and its fork")
        assert [item.pid for item in find_descendants(shell.pid, "rehearsal", "run")] == [
            item.pid for item in family.children()
        ]
