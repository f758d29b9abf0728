"""An account that dies or answers no more in the middle of a rehearsal: it ends with a report all the same."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rehearsal.running import Begin, Running, beginning, nothing_left


@pytest.fixture
def begin(quick_tree: Path) -> Iterator[Begin]:
    with beginning(quick_tree, Running) as begin:
        yield begin


def test_an_account_that_dies_is_the_one_error(begin: Begin) -> None:
    running = begin("bereft")
    running.reaches("training")
    (aws,) = [one for one in running.family if "rehearsal.aws" in one.cmdline()]
    aws.send_signal(signal.SIGKILL)
    ended = running.ends()
    assert ended.status == 1, ended.told
    assert "Traceback" not in ended.told
    (error,) = ended.report["errors"]
    assert error.startswith(f"the emulated AWS at http://127.0.0.1:{running.port()} died")
    assert f"its log is {running.folder}/aws/aws.log" in error
    nothing_left(running)


def test_objects_that_may_not_be_listed_cost_no_report(begin: Begin) -> None:
    running = begin("unlisted", account={"REHEARSAL_DENY": "s3:ListObjectsV2"})
    ended = running.ends()
    assert ended.status == 1, ended.told
    assert "Traceback" not in ended.told
    report = ended.report
    assert "ListObjectsV2" in report["errors"][0]
    assert report["resources_created"] == report["resources_deleted"] + len(report["retained"])
    assert report["leaked"] == []
    nothing_left(running)
