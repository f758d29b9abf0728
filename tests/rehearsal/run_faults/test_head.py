"""The job continues while AWS replaces the head, and while the head is suspended."""

import re
from pathlib import Path

import pytest

from tests.rehearsal.conftest import CompletedRehearsal, run_rehearsal

pytestmark = pytest.mark.slow


def rehearse(tree: Path, fault: str, steps: int) -> CompletedRehearsal:
    """Run a rehearsal with the fault; assert that the run succeeds in its first attempt, with nothing leaked."""
    ended = run_rehearsal(tree, "--stack", "local", "--set", f"job.train.steps={steps}", "--fault", fault)
    assert ended.exit_status == 0, ended.stderr
    assert fault in ended.report["faults"]
    assert (ended.report["faults_without_effect"], ended.report["leaked"]) == ([], [])
    writers = (tree / "build/rehearsal/local/logs.txt").read_text()  # INSTANCE/BOOT/ATTEMPT-SOURCE of each line
    assert {int(number) for number in re.findall(r"^i-\w+/\d+/(\d+)-", writers, re.MULTILINE)} == {1}
    return ended


def seconds_of(ended: CompletedRehearsal, text: str) -> float:
    """Return the time of the first line of a rehearsal's output with this text, in seconds from its start."""
    match = re.search(rf"^ *([\d.]+) s .*{text}", ended.stderr, re.MULTILINE)
    assert match is not None, ended.stderr
    return float(match[1])


def test_new_head_continues_the_run(tree: Path) -> None:
    ended = rehearse(tree, "head-terminate,step=10", 200)
    assert [each["instances"] for each in ended.report["billed"] if each["type"] == "t3.medium"] == [2]


def test_job_continues_while_the_head_is_suspended(tree: Path) -> None:
    ended = rehearse(tree, "head-hang,seconds=60.0,step=10", 60)
    last_step, succeeded = (seconds_of(ended, text) for text in ("step 60 of 60", "succeeded: 60 steps"))
    assert succeeded - seconds_of(ended, "step 1 of 60") > 55
    assert last_step < succeeded - 20  # all steps while the head was suspended
