"""A launch that cannot get all its nodes terminates them, reports the reason, and stops the billing."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rehearsal.aws.account_file import FILE_VARIABLE
from rehearsal.aws.billing import billed_by_type
from rehearsal.aws.control_models import InstanceRecord
from rehearsal.aws.process import EmulatedAws
from rehearsal.hypervisor.processes import find_processes
from tests.rehearsal.conftest import COPY_IGNORE, run_rehearsal, start_account, write_stack
from trainyard.aws import tags

pytestmark = pytest.mark.slow

HOUR = 3600.0


@pytest.fixture
def account(tree: Path) -> Iterator[dict[str, str]]:
    """An account for one test, which advances the clock: a lease that is set later would be in the past."""
    with start_account(tree) as environment:
        yield environment


@pytest.fixture
def aws(account: dict[str, str]) -> EmulatedAws:
    """A client of the account."""
    return EmulatedAws.attach(Path(account[FILE_VARIABLE]))


def rehearse(
    tree: Path, account: dict[str, str], stack: str, *arguments: str, nodes: int
) -> tuple[dict[str, Any], str]:
    """Run a rehearsal that fails before its job starts. Returns its report and its stderr."""
    (tree / "examples/nothing").mkdir(exist_ok=True)
    (tree / "examples/nothing/train.py").touch()
    job = {"name": "nothing", "source": "examples/nothing", "command": ["train.py"]}
    # One zone: with more, the launch tries the next one.
    write_stack(tree, stack, nodes=nodes, job=job, capacity={"zones": ["us-east-1a"]})
    ended = run_rehearsal(tree, "--stack", stack, *arguments, environment=account, timeout_seconds=300)
    assert ended.exit_status == 1, ended.stderr
    assert find_processes(tree / "build/rehearsal" / stack) == []
    return ended.report, ended.stderr


def instances(aws: EmulatedAws, stack: str) -> list[InstanceRecord]:
    """Return the instances of a stack, including terminated instances."""
    return [instance for instance in aws.instances() if instance.tags.get(tags.STACK) == f"trainyard/{stack}"]


def assert_terminated(aws: EmulatedAws, stack: str, report: dict[str, Any], *, workers: int = 1) -> None:
    """Assert that all workers are terminated, nothing leaked, and the billed time does not change in an hour."""
    assert {instance.state for instance in instances(aws, stack)} == {"terminated"}
    assert report["leaked"] == []
    aws.advance_clock(HOUR)
    assert [entry.model_dump() for entry in billed_by_type(instances(aws, stack), aws.now())] == report["billed"]
    billed = {entry["type"]: entry["instances"] for entry in report["billed"]}
    assert billed == {"c7i.xlarge": workers, "t3.medium": 1}


def test_launch_terminates_its_nodes_when_capacity_is_short_by_one(
    tree: Path, account: dict[str, str], aws: EmulatedAws
) -> None:
    fault = "capacity,limit=1,instance_type=c7i.xlarge"
    report, stderr = rehearse(tree, account, "short", "--fault", fault, nodes=2)
    (error,) = report["errors"]
    assert "1 of 2 requested nodes, so all are terminated: InsufficientInstanceCapacity in us-east-1a" in error
    (worker,) = [instance.id for instance in instances(aws, "short") if instance.instance_type == "c7i.xlarge"]
    assert f"rolled back, terminated: {worker}\n" in stderr
    assert_terminated(aws, "short", report)
    assert report["faults"] == [fault]
    assert aws.faults() == []


def test_launch_fails_with_the_message_of_a_failed_playbook(
    tree: Path, account: dict[str, str], aws: EmulatedAws, tmp_path: Path
) -> None:
    broken = tmp_path / "trainyard"
    shutil.copytree(tree, broken, ignore=COPY_IGNORE)
    tasks = broken / "playbooks/roles/job/tasks/main.yml"  # a role of workers only
    failing_task = "- name: Check the disk\n  ansible.builtin.fail:\n    msg: the disk of this node is missing\n\n"
    tasks.write_text(tasks.read_text().replace("---\n", f"---\n{failing_task}", 1))
    retries = broken / "trainyard/models/startup_failures.py"  # a failure counts when it has lasted for this time
    retries.write_text(re.sub(r"(PLAYBOOK_RETRY_SECONDS) = .*", r"\1 = 5.0", retries.read_text()))
    report, _ = rehearse(broken, account, "unfit", nodes=1)
    (error,) = report["errors"]
    message = "job: Check the disk: the disk of this node is missing"
    assert re.search(f"node i-[0-9a-f]+ could not be configured: {message}", error)
    assert_terminated(aws, "unfit", report, workers=2)  # the second node failed in the same way as the first
