"""Every shipped stack, and what a stack may be given, made in the emulated AWS and taken down again."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from rehearsal.adapter.account import Adapter
from rehearsal.adapter.mocks import up
from rehearsal.adapter.teardown import destroy
from rehearsal.aws.process import EmulatedAws
from rehearsal.seed import prepare
from tests.infra.conftest import STACKS
from tests.rehearsal.adapter.conftest import ROOT
from trainyard.config.loader import read_settings

KEY = "arn:aws:kms:us-east-1:123456789012:key/12345678-1234-1234-1234-123456789012"
EXISTING = {"vpc_id": "vpc-0aaaaaaaaaaaaaaa1", "subnet_id": "subnet-0aaaaaaaaaaaaaaa1"}
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "existing": (
        "local",
        {"network": {"existing": EXISTING}, "storage": {"bucket": "given-to-a-stack", "kms_key": KEY}},
    ),
    "closed": ("local", {"network": {"nat": False}, "node": {"system": "as-is"}}),
    "reserved": ("local", {"capacity": {"reservation": {"id": "cr-0bbbbbbbbbbbbbbb1"}}}),
    "scratch": ("a100-cluster", {"fsx": {"deployment": "SCRATCH_2", "data_repository": True}}),
    "backed-up": ("a100-cluster", {"fsx": {"backup_days": 3}, "guardrails": {"email": "team@example.com"}}),
    "debian": ("local", {"image": "debian-12"}),
}
CASES = {**{f"shipped-{stack}": (stack, {}) for stack in STACKS}, **OTHERS}


def config_of(stack: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    loaded = yaml.safe_load((ROOT / "stacks" / f"Pulumi.{stack}.yaml").read_text())["config"]
    config: dict[str, Any] = copy.deepcopy(loaded)
    config["trainyard:cluster"] |= changes
    return config


@pytest.mark.parametrize("name", CASES)
def test_stack_is_made_and_destroy_leaves_only_what_is_retained(name: str, aws: EmulatedAws, account: Adapter) -> None:
    config = config_of(*CASES[name])
    prepare(aws, read_settings(config["trainyard:cluster"], Path(ROOT), name))
    before = {(one.service, one.kind, one.id) for one in aws.dump()}
    run = up(config, name, ROOT, account=account)
    assert all(resource.made for resource in run.resources.values())
    gone = destroy(run)
    left = {one_id.rpartition("/")[2] for _, _, one_id in {(o.service, o.kind, o.id) for o in aws.dump()} - before}
    assert left == {one.id for one in gone.retained if one.type in ("aws:s3/bucket:Bucket", "aws:kms/key:Key")}


def test_up_after_a_destroy_adopts_what_it_left(aws: EmulatedAws, account: Adapter) -> None:
    config = config_of("local", {})
    first = up(config, "again", ROOT, account=account)
    destroy(first)
    second = up(config, "again", ROOT, account=account)
    assert {one.type for one in second.resources.values() if one.adopted} == {"aws:s3/bucket:Bucket", "aws:kms/key:Key"}
    assert second.exports["data_bucket"] == first.exports["data_bucket"]
    assert second.one("aws:kms/key:Key", "stack-key").id == first.one("aws:kms/key:Key", "stack-key").id
    destroy(second)
