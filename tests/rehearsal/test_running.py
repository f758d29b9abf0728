"""How tests find a rehearsal's processes: a fork of one, which has its words until it becomes its program, is none."""

import subprocess
import sys

import psutil

from tests.polling import eventually
from tests.rehearsal.running import started

FORKS = "import os, sys\nos.fork()\nsys.stdin.read()"


def test_a_fork_of_a_process_is_not_taken_for_another() -> None:
    words = [sys.executable, "-c", FORKS, "rehearsal", "run"]
    with subprocess.Popen(["sh", "-c", '"$@"; exit', "sh", *words], stdin=subprocess.PIPE) as shell:
        family = psutil.Process(shell.pid)
        eventually(lambda: len(family.children(recursive=True)) == 2, "the process and its fork")
        assert [one.pid for one in started(shell.pid, "rehearsal", "run")] == [one.pid for one in family.children()]
