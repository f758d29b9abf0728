"""A launch that can't have all its nodes ends with none: the reason is told, and nothing is billed from then on."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rehearsal.aws.billing import billed_by_type
from rehearsal.aws.control_models import InstanceTruth
from rehearsal.aws.process import EmulatedAws
from rehearsal.hypervisor.processes import marked
from tests.rehearsal.conftest import LEFT_OUT, kept_account, rehearsed, write_stack
from trainyard.aws import tags

HOUR = 3600.0


@pytest.fixture
def account(tree: Path) -> Iterator[dict[str, str]]:
    """An account of the test's own: its clock is jumped, and a lease put afterwards would lie in the past."""
    with kept_account(tree) as environment:
        yield environment


@pytest.fixture
def aws(account: dict[str, str]) -> EmulatedAws:
    return EmulatedAws.attach(account["AWS_ENDPOINT_URL"])


def rehearse(tree: Path, account: dict[str, str], stack: str, *words: str, nodes: int) -> tuple[dict[str, Any], str]:
    """Report and lines of a rehearsal that fails. Its job never comes to start: an empty script is enough."""
    (tree / "examples/nothing").mkdir(exist_ok=True)
    (tree / "examples/nothing/train.py").touch()
    job = {"name": "nothing", "dataset": "none", "source": "examples/nothing", "command": ["train.py"]}
    write_stack(tree, stack, nodes=nodes, job=job)
    ended = rehearsed(tree, "--stack", stack, *words, environment=account, seconds=300)
    assert ended.status == 1, ended.told
    assert marked(tree / "build/rehearsal" / stack) == []
    return ended.report, ended.told


def instances(aws: EmulatedAws, stack: str) -> list[InstanceTruth]:
    return [one for one in aws.instances() if one.tags.get(tags.STACK) == stack]


def assert_over(aws: EmulatedAws, stack: str, report: dict[str, Any], told: str) -> None:
    """The launch took its node back, nothing runs or leaked, and an hour later the bill is what the report says."""
    (worker,) = [one.id for one in instances(aws, stack) if one.instance_type == "c7i.xlarge"]
    assert f"taken back: {worker}\n" in told
    assert {one.state for one in instances(aws, stack)} == {"terminated"}
    assert report["leaked"] == []
    aws.advance(HOUR)
    assert [one.model_dump() for one in billed_by_type(instances(aws, stack), aws.now())] == report["billed"]
    assert {one["type"]: one["instances"] for one in report["billed"]} == {"c7i.xlarge": 1, "t3.medium": 1}


def test_capacity_for_all_but_one_ends_with_none(tree: Path, account: dict[str, str], aws: EmulatedAws) -> None:
    fault = "capacity,limit=1,instance_type=c7i.xlarge"
    report, told = rehearse(tree, account, "short", "--fault", fault, nodes=2)
    (error,) = report["errors"]
    assert "1 of 2 nodes could be launched, so none stays: InsufficientInstanceCapacity in us-east-1a" in error
    assert_over(aws, "short", report, told)
    assert report["faults"] == [fault]
    assert aws.faults() == []


def test_a_node_whose_play_fails_ends_the_launch_in_its_words(
    tree: Path, account: dict[str, str], aws: EmulatedAws, tmp_path: Path
) -> None:
    broken = tmp_path / "trainyard"
    shutil.copytree(tree, broken, ignore=LEFT_OUT)
    tasks = broken / "playbooks/roles/job/tasks/main.yml"  # a role that only workers have
    refusal = "- name: Look for the disk\n  ansible.builtin.fail:\n    msg: the disk of this node is not there\n\n"
    tasks.write_text(tasks.read_text().replace("---\n", f"---\n{refusal}", 1))
    report, told = rehearse(broken, account, "unfit", nodes=1)
    (error,) = report["errors"]
    words = "job: Look for the disk: the disk of this node is not there"
    assert re.search(f"node i-[0-9a-f]+ could not be configured: {words}", error)
    assert_over(aws, "unfit", report, told)
