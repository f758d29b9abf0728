"""A rehearsal of a GPU stack that finds its capacity in the second zone, and the differences from AWS in its report."""

from pathlib import Path
from typing import Any

import pytest

from rehearsal.substitutions import SMALL_MODEL, SMALL_STEPS
from tests.rehearsal.conftest import capacity_attempts_for, run_rehearsal

pytestmark = pytest.mark.slow
TYPE = "p4d.24xlarge"
SHORTAGE = f"capacity,limit=1,instance_type={TYPE},zone=us-east-1a"


@pytest.fixture(scope="module")
def report(tree: Path) -> dict[str, Any]:
    """The report of the rehearsal."""
    ended = run_rehearsal(tree, "--stack", "a100-cluster", "--nodes", "2", "--fault", SHORTAGE)
    assert ended.exit_status == 0, ended.stderr
    return ended.report


def test_rehearsal_succeeds(report: dict[str, Any]) -> None:
    assert report["ok"]
    assert (report["nodes"], report["processes_per_node"]) == (2, 2)
    assert report["resources_created"] == report["resources_deleted"] + len(report["retained"])
    assert report["leaked"] == []
    assert (report["steps"], len(report["checkpoints"])) == (SMALL_STEPS["steps"], 2)
    assert report["last_loss"] < report["first_loss"]


def test_stack_is_in_the_zone_with_capacity_for_all_nodes(report: dict[str, Any]) -> None:
    assert capacity_attempts_for(report, TYPE) == [
        ("reservation", "us-east-1a", 0, "InsufficientInstanceCapacity"),
        ("reservation", "us-east-1b", 2, None),
        ("launch", "us-east-1b", 2, None),
    ]
    assert {entry["zone"] for entry in report["billed"]} == {"us-east-1b"}


def test_report_has_the_scaled_settings(report: dict[str, Any]) -> None:
    substitutions = {part["original"]: part["replacement"] for part in report["substitutions"]}
    assert substitutions["8 processes per node"] == "2 processes per node"
    small = f"dim {SMALL_MODEL['dim']}, {SMALL_MODEL['layers']} layers, bf16, {SMALL_STEPS['steps']} steps"
    assert substitutions["model, optimizer, batch size, steps and intervals of the stack"] == small


def test_report_has_the_skipped_roles(report: dict[str, Any]) -> None:
    skipped = {part["subject"] for part in report["not_rehearsed"]}
    assert {f"role {name} on a worker" for name in ("efa", "lustre", "nvidia_driver")} <= skipped
