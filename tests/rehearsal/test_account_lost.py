"""A rehearsal whose emulated AWS exits or denies a call still ends with a report."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rehearsal.hypervisor.processes import command_line
from tests.rehearsal.running import RehearsalProcess, StartRehearsal, assert_no_leftovers, rehearsal_starter

pytestmark = pytest.mark.slow


@pytest.fixture
def start_rehearsal(tree_without_checks: Path) -> Iterator[StartRehearsal]:
    with rehearsal_starter(tree_without_checks, RehearsalProcess) as start_rehearsal:
        yield start_rehearsal


def test_exit_of_the_emulated_aws_is_the_only_error(start_rehearsal: StartRehearsal) -> None:
    running = start_rehearsal("account-exited")
    running.wait_for_phase("training")
    (aws,) = [process for process in running.family if "rehearsal.aws" in command_line(process)]
    aws.send_signal(signal.SIGKILL)
    ended = running.wait_for_exit()
    assert ended.exit_status == 1, ended.stderr
    assert "Traceback" not in ended.stderr
    (error,) = ended.report["errors"]
    assert error.startswith(f"the emulated AWS at http://127.0.0.1:{running.account_port()} exited")
    assert f"{running.folder}/aws/aws.log" in error
    assert_no_leftovers(running)


def test_denied_list_objects_call_produces_a_report(start_rehearsal: StartRehearsal) -> None:
    running = start_rehearsal("unlisted", account={"REHEARSAL_DENY": "s3:ListObjectsV2"})
    ended = running.wait_for_exit()
    assert ended.exit_status == 1, ended.stderr
    assert "Traceback" not in ended.stderr
    report = ended.report
    assert "ListObjectsV2" in report["errors"][0]
    assert report["resources_created"] == report["resources_deleted"] + len(report["retained"])
    assert report["leaked"] == []
    assert_no_leftovers(running)
