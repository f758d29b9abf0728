"""A launch on booted nodes with two faults: EC2 does not list new instances, and the job has a syntax error."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.rehearsal.running import CompletedRehearsal, RehearsalProcess, rehearsal_starter

pytestmark = pytest.mark.booted
SYNTAX_ERROR = "import os\n\ndef train(:\n    pass\n"


class BootedRehearsal(RehearsalProcess):
    """A rehearsal with the nspawn backend and eventual consistency of EC2."""

    arguments: ClassVar[tuple[str, ...]] = ("--backend", "nspawn", "--fault", "eventual-consistency,seconds=10")


@pytest.fixture(scope="module")
def ended(tree: Path) -> Iterator[CompletedRehearsal]:
    """The completed rehearsal."""
    with rehearsal_starter(tree, BootedRehearsal) as start:
        yield start("syntax-error", script=SYNTAX_ERROR).wait_for_exit()


def test_node_that_ec2_does_not_list_yet_starts(ended: CompletedRehearsal) -> None:
    assert ended.report["faults"] == ["eventual-consistency,seconds=10.0"]
    assert "failed twice the same way" in str(ended.report["errors"]), ended.stderr  # so its workers had started


def test_syntax_error_is_reported_with_node_file_and_line(ended: CompletedRehearsal) -> None:
    (error,) = ended.report["errors"]
    assert re.search(r"rank 0 on i-[0-9a-f]{17} .*SyntaxError: invalid syntax \(train\.py, line 3\)", error), error


def test_all_resources_are_destroyed(ended: CompletedRehearsal) -> None:
    report: dict[str, Any] = ended.report
    assert (ended.exit_status, report["leaked"]) == (1, [])
    assert report["resources_created"] == report["resources_deleted"] + len(report["retained"])
