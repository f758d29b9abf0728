"""Rehearsals of GPU stacks with a shortage of capacity, in the profile `realistic`: minutes of AWS are seconds."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.rehearsal.conftest import CompletedRehearsal, capacity_attempts_for, run_rehearsal, stack_file

pytestmark = pytest.mark.slow
P4D, P5EN = "p4d.24xlarge", "p5en.48xlarge"
EMPTY_JOB = {"name": "empty", "source": "examples/empty", "command": ["train.py"]}


def rehearse(tree: Path, stack: str, name: str, *arguments: str, **changes: Any) -> CompletedRehearsal:
    """Rehearse a shipped stack as `name`, with a job that ends at once and `changes` of top-level settings."""
    (tree / "examples/empty").mkdir(exist_ok=True)
    (tree / "examples/empty/train.py").touch()
    document = yaml.safe_load(stack_file(tree, stack).read_text())
    settings = document["config"]["trainyard:cluster"]
    settings.update({"job": {**EMPTY_JOB, "time_limit_minutes": settings["job"]["time_limit_minutes"]}, **changes})
    settings["launch"]["health_check_timeout_minutes"] = 0
    stack_file(tree, name).write_text(yaml.safe_dump(document))
    try:
        return run_rehearsal(tree, "--stack", name, *arguments)
    finally:
        stack_file(tree, name).unlink()


def test_nothing_is_billed_without_capacity_in_any_zone(tree: Path) -> None:
    fault = f"capacity,limit=0,instance_type={P4D}"
    ended = rehearse(tree, "a100-cluster", "none", "--fault", fault, "--set", "capacity.wait_minutes=0")
    assert ended.exit_status == 1
    zones = {zone for _, zone, _, _ in capacity_attempts_for(ended.report, P4D)}
    assert len(zones) > 1
    (error,) = ended.report["errors"]
    assert all(f"{zone}: InsufficientInstanceCapacity" in error for zone in zones), error
    assert (ended.report["billed"], ended.report["unused_reservations"], ended.report["leaked"]) == ([], [], [])


def test_partial_launch_without_a_reservation_is_terminated_while_instances_are_pending(tree: Path) -> None:
    fault, budget = f"capacity,limit=5,instance_type={P4D}", "guardrails.max_cost_usd=5000"
    options = ("--nodes", "8", "--fault", fault, "--set", "capacity.reserve=false", "--set", budget)
    ended = rehearse(tree, "a100-cluster", "partial", *options)
    assert ended.exit_status == 1
    (error,) = ended.report["errors"]
    assert "AWS launched 5 of 8 requested nodes, so all are terminated" in error
    assert "could not be terminated, retrying" in ended.stderr
    billed = {entry["type"]: (entry["instances"], entry["seconds"]) for entry in ended.report["billed"]}
    assert billed[P4D] == (5, 300.0)  # AWS bills a minute or more
    journal = (tree / "build/rehearsal/partial/aws/journal.jsonl").read_text().splitlines()
    times = {entry["operation"]: entry["time"] for entry in map(json.loads, journal)}  # of the last call
    assert times["TerminateInstanceInAutoScalingGroup"] - times["LaunchInstances"] < 30
    assert "member-omission,every=10" in ended.report["faults"]
    assert ended.report["leaked"] == []


def test_launch_waits_for_the_start_of_a_capacity_block(tree: Path) -> None:
    ended = rehearse(tree, "h200-cluster", "block", "--nodes", "1", "--fault", "capacity-block-start,seconds=60")
    assert ended.exit_status == 0, ended.stderr
    assert "starts at" in ended.stderr
    assert capacity_attempts_for(ended.report, P5EN) == [("launch", "us-east-1a", 1, None)]  # none before the start


def test_spot_launch_uses_three_instance_types(tree: Path) -> None:
    types = ["g6e.4xlarge", "g6e.8xlarge", "g6e.16xlarge"]
    faults = [word for name in types for word in ("--fault", f"capacity,limit=1,instance_type={name}")]
    changes = {"instance_type": types[0], "nodes": 3, "capacity": {"spot": {"instance_types": types[1:]}}}
    ended = rehearse(tree, "spot-cluster", "pool", *faults, **changes, network={"efa": False})
    assert ended.exit_status == 0, ended.stderr
    assert [capacity_attempts_for(ended.report, name)[-1][2] for name in types] == [1, 1, 1]
