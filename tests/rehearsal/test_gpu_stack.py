"""A GPU stack rehearsed in its own shape, and how its report names what was made smaller or left out."""

from pathlib import Path
from typing import Any

import pytest

from rehearsal.scaling import SMALL_MODEL, SMALL_STEPS
from tests.rehearsal.conftest import rehearsed


@pytest.fixture(scope="module")
def report(tree: Path) -> dict[str, Any]:
    ended = rehearsed(tree, "--stack", "a100-cluster", "--nodes", "3")
    assert ended.status == 0, ended.told
    return ended.report


def test_it_ends_well(report: dict[str, Any]) -> None:
    assert report["ok"]
    assert (report["nodes"], report["processes_per_node"]) == (3, 2)
    assert report["resources_created"] == report["resources_deleted"] + len(report["retained"])
    assert report["leaked"] == []
    assert (report["steps"], len(report["checkpoints"])) == (SMALL_STEPS["steps"], 2)
    assert report["last_loss"] < report["first_loss"]


def test_what_was_made_smaller_is_named(report: dict[str, Any]) -> None:
    scaled = {one["what"]: one["by"] for one in report["scaled"]}
    assert scaled["8 processes a node"] == "2 processes a node"
    small = f"dim {SMALL_MODEL['dim']}, {SMALL_MODEL['layers']} layers, bf16, {SMALL_STEPS['steps']} steps"
    assert scaled["the stack's model, optimizer, batch, steps and intervals"] == small


def test_what_no_folder_can_be_is_named(report: dict[str, Any]) -> None:
    left_out = {one["what"] for one in report["not_rehearsed"]}
    assert {f"role {name} on a worker" for name in ("efa", "lustre", "nvidia_driver")} <= left_out
