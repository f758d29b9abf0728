"""All that is wrong with a stack file is told at once, and nothing that only follows from it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.trainyard.config.stacks import GOOD, changed
from trainyard.base import CONFIG_KEY, InputError
from trainyard.config.loader import read_settings

PUBLIC = {"network.cidr": "8.8.0.0/16"}
THERE = {"vpc_id": "vpc-0123456789abcdef0", "subnet_id": "subnet-0123456789abcdef0"}


def told(raw: Any, root: Path) -> list[str]:
    """Keys of the problems."""
    with pytest.raises(InputError) as caught:
        read_settings(raw, root, "stacks/x.yaml")
    return [problem.key.removeprefix(f"{CONFIG_KEY}.") for problem in caught.value.problems]


def test_no_settings_at_all_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no such object"):
        read_settings(None, tmp_path, "stacks/x.yaml")


def test_settings_that_are_no_object_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"= \['c7i.xlarge'\]: must be an object"):
        read_settings(["c7i.xlarge"], tmp_path, "stacks/x.yaml")


def test_every_wrong_type_is_told(tmp_path: Path) -> None:
    raw = changed({"nodes": 0, "root_volume_gib": 1, "extra": 1})
    assert sorted(told(raw, tmp_path)) == ["extra", "nodes", "root_volume_gib"]


def test_every_broken_rule_is_told(tmp_path: Path) -> None:
    raw = changed({**PUBLIC, "network.efa": True, "tags": {"Name": "x"}})
    assert sorted(told(raw, tmp_path)) == ["network.cidr", "network.efa", "tags.Name"]


@pytest.mark.parametrize(
    ("wrong", "keys"),
    [
        ({"root_volume_gib": "big"}, ["root_volume_gib"]),
        ({"network.zone": 7}, ["network.zone"]),
        ({"tags": {"aws:team": "x"}}, ["tags.aws:team"]),
        ({"extra": {"deep": 1}}, ["extra"]),
        ({"fsx": {"capacity_gib": 3000, "backup_days": 91}}, ["fsx.backup_days", "fsx.capacity_gib"]),
        ({"storage": []}, ["storage"]),
        ({"job.command": ["train.py", 7]}, ["job.command.1"]),
        # What every stack must have.
        ({"nodes": "two"}, ["nodes"]),
        ({"instance_type": "p9.huge"}, ["instance_type"]),
        ({"job": "train"}, ["job"]),
        ({"job": {}}, ["job.dataset", "job.name", "job.train"]),
        ({"job.name": "Two Words", "nodes": None}, ["job.name", "nodes"]),
        # What an object must have.
        ({"network.existing": {"vpc_id": "mine"}}, ["network.existing.subnet_id", "network.existing.vpc_id"]),
        ({"capacity": {"capacity_block": {"id": 7}}}, ["capacity.capacity_block.id"]),
        ({"job.train": {"optimizer": {"learning_rate": 1e-5, "beta1": 2}}}, ["job.train.optimizer.beta1"]),
    ],
)
def test_wrong_types_and_broken_rules_are_told_together(
    wrong: Mapping[str, Any], keys: list[str], tmp_path: Path
) -> None:
    assert sorted(told(changed({**PUBLIC, **wrong}), tmp_path)) == sorted([*keys, "network.cidr"])


def test_an_empty_stack_misses_what_every_stack_must_have_and_nothing_else(tmp_path: Path) -> None:
    assert sorted(told({}, tmp_path)) == ["instance_type", "job", "nodes"]


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        # Each would have a follow-up: of the default, or of the stand-in, in the place of what could not be read.
        ({"nodes": 0, "job.train": {"batch_size": 6}}, "nodes"),
        ({"instance_type": "g5.huge", "job.processes_per_node": 8}, "instance_type"),
        ({"instance_type": "p5.huge", "network.efa": True}, "instance_type"),
        ({"capacity": {"on_demand": {}, "spot": {"max_price_usd": 0}}}, "capacity.spot.max_price_usd"),
        ({"capacity": {"spot": {"max_price_usd": "1 USD"}}}, "capacity.spot.max_price_usd"),
        ({"network.nat": False, "node.system": "asis"}, "node.system"),
        ({"job.time_limit_minutes": "1 h", "guardrails.max_cost_usd": 1}, "job.time_limit_minutes"),
        ({"job.train": 1}, "job.train"),
        ({"network.cidr": "10.0.0.1/16", "nodes": 200, "job.train": {"batch_size": 1600}}, "network.cidr"),
    ],
)
def test_what_follows_from_an_unreadable_key_is_not_told(wrong: Mapping[str, Any], key: str, tmp_path: Path) -> None:
    assert told(changed(wrong), tmp_path) == [key]


def test_the_raw_settings_stay_as_they_are(tmp_path: Path) -> None:
    raw = changed({"network": {"existing": {**THERE, "vpc_id": "mine"}}})
    before = repr(raw)
    told(raw, tmp_path)
    assert repr(raw) == before
    assert GOOD["nodes"] == 2
