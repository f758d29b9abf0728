"""A job that fails in a rehearsal: its traceback is printed once, and the report has what the run left."""

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from rehearsal.report import print_report
from tests.rehearsal.running import RehearsalProcess, StartRehearsal, rehearsal_starter
from tests.rehearsal.test_report_page import create_report

ERROR = "ValueError: label 1003 is out of range"
SCRIPT = """
print("epoch 1", flush=True)
raise ValueError("label 1003 is out of range")
"""


@pytest.fixture
def start_rehearsal(tree_without_checks: Path) -> Iterator[StartRehearsal]:
    with rehearsal_starter(tree_without_checks, RehearsalProcess) as start_rehearsal:
        yield start_rehearsal


@pytest.mark.slow
def test_traceback_of_a_failed_job_is_printed_once(start_rehearsal: StartRehearsal) -> None:
    ended = start_rehearsal("failing", "failing", script=SCRIPT).wait_for_exit()
    assert ended.exit_status == 1, ended.stderr
    (error,) = ended.report["errors"]
    assert error.startswith("the job failed: rank 0 (local rank 0 of i-")
    assert error.endswith(ERROR)
    assert ended.stderr.count("Traceback (most recent call last):") == 1, ended.stderr
    lines = [line for line in ended.stderr.splitlines() if ERROR in line]
    assert len(lines) == 3, "the failure of the first attempt, the reason for the end, and its traceback"


def test_summary_has_the_first_line_of_each_error() -> None:
    output = io.StringIO()
    error = f"the job failed: rank 0: {ERROR}\nTraceback (most recent call last):\n{ERROR}"
    print_report(create_report(ok=False, errors=(error, "leaked: ec2 volume vol-1")), Console(file=output, width=200))
    lines = [line for line in output.getvalue().splitlines() if line.startswith("error")]
    assert lines == [f"error the job failed: rank 0: {ERROR} (see above)", "error leaked: ec2 volume vol-1"]
