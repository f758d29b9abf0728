"""A launch on booted machines: EC2 does not know its nodes at first, and Python can't read its job."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.rehearsal.running import Ended, Running, beginning

pytestmark = pytest.mark.booted
MISTAKEN = "import os\n\ndef train(:\n    pass\n"


class Booted(Running):
    words: ClassVar[tuple[str, ...]] = ("--backend", "nspawn", "--fault", "invisible,seconds=10")


@pytest.fixture(scope="module")
def ended(tree: Path) -> Iterator[Ended]:
    with beginning(tree, Booted) as begin:
        yield begin("mistaken", script=MISTAKEN).ends()


def test_a_node_that_ec2_does_not_know_yet_comes_up(ended: Ended) -> None:
    assert ended.report["faults"] == ["invisible,seconds=10.0"]
    assert "failed twice the same way" in str(ended.report["errors"]), ended.told  # so its workers were started


def test_a_syntax_error_is_told_with_node_file_and_line(ended: Ended) -> None:
    (error,) = ended.report["errors"]
    assert re.search(r"rank 0 on i-[0-9a-f]{17} .*SyntaxError: invalid syntax \(train\.py, line 3\)", error), error


def test_all_is_taken_down(ended: Ended) -> None:
    report: dict[str, Any] = ended.report
    assert (ended.status, report["leaked"]) == (1, [])
    assert report["resources_created"] == report["resources_deleted"] + len(report["retained"])
