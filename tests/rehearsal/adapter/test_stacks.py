"""Every shipped stack, and stacks with other settings, deployed to the emulated AWS and destroyed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rehearsal.adapter.account import EmulatedAccount
from rehearsal.adapter.mocks import up
from rehearsal.adapter.teardown import destroy
from rehearsal.aws.faults import Deny, Fault
from rehearsal.aws.process import EmulatedAws
from rehearsal.seed import create_existing_resources
from tests.infra.conftest import STACKS
from tests.rehearsal.adapter.conftest import ROOT
from tools.stack_files import read_stack_file
from trainyard.config.loader import load_settings

KEY = "arn:aws:kms:us-east-1:123456789012:key/12345678-1234-1234-1234-123456789012"
EXISTING = {"vpc_id": "vpc-0aaaaaaaaaaaaaaa1", "subnet_id": "subnet-0aaaaaaaaaaaaaaa1"}
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "existing": (
        "local",
        {"network": {"existing": EXISTING}, "storage": {"bucket": "existing-bucket", "kms_key": KEY}},
    ),
    "no-nat-gateway": ("local", {"network": {"nat_gateway": False}, "node": {"provisioning": "skip"}}),
    "reserved": ("local", {"capacity": {"reservation": {"id": "cr-0bbbbbbbbbbbbbbb1"}}}),
    "scratch": ("a100-cluster", {"fsx": {"deployment_type": "SCRATCH_2", "data_repository": True}}),
    "with-backups": (
        "local",
        {"fsx": {"backup_retention_days": 3}, "guardrails": {"email": "team@example.com"}},
    ),
    "fsx-with-efa": (
        "h200-cluster",
        {"fsx": {"efa": True, "storage_capacity_gib": 4800, "throughput_mbps_per_tib": 1000, "metadata_iops": 12000}},
    ),
    "debian": ("local", {"image": "debian-12"}),
}
CASES = {**{f"shipped-{stack}": (stack, {}) for stack in STACKS}, **OTHERS}


def config_of(stack: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    config = read_stack_file(stack)
    config["trainyard:cluster"] |= changes
    return config


@pytest.mark.parametrize("name", CASES)
def test_stack_is_created_and_destroy_keeps_only_retained_resources(
    name: str, aws: EmulatedAws, account: EmulatedAccount
) -> None:
    config = config_of(*CASES[name])
    create_existing_resources(aws, load_settings(config["trainyard:cluster"], Path(ROOT), name), None)
    before = {(resource.service, resource.kind, resource.id) for resource in aws.list_resources()}
    run = up(config, name, ROOT, account=account)
    assert all(resource.exists for resource in run.resources.values())
    destroyed = destroy(run)
    after = {(resource.service, resource.kind, resource.id) for resource in aws.list_resources()}
    remaining = {resource_id.rpartition("/")[2] for _, _, resource_id in after - before}
    assert remaining == {
        resource.id for resource in destroyed.retained if resource.type in ("aws:s3/bucket:Bucket", "aws:kms/key:Key")
    }


def test_denied_budgets_do_not_fail_the_up(
    aws: EmulatedAws, account: EmulatedAccount, caplog: pytest.LogCaptureFixture
) -> None:
    """Organizations deny budgets:* to member accounts."""
    names = ("DescribeBudget", "CreateBudget", "CreateNotification")
    denials: list[Fault] = [Deny(operation=f"budgets:{name}") for name in names]
    aws.inject(*denials)
    try:
        run = up(config_of("local", {}), "denied-budgets", ROOT, account=account)
    finally:
        aws.remove_faults(denials)
    assert not run.resources_of_type("aws:budgets/budget:Budget")
    assert "AccessDeniedException" in caplog.text
    destroy(run)


def test_up_after_a_destroy_imports_the_retained_resources(aws: EmulatedAws, account: EmulatedAccount) -> None:
    config = config_of("local", {})
    first = up(config, "again", ROOT, account=account)
    destroy(first)
    second = up(config, "again", ROOT, account=account)
    assert {resource.type for resource in second.resources.values() if resource.imported} == {
        "aws:s3/bucket:Bucket",
        "aws:kms/key:Key",
    }
    assert second.exports["data_bucket"] == first.exports["data_bucket"]
    assert (
        second.resource("aws:kms/key:Key", "key-stack-key").id == first.resource("aws:kms/key:Key", "key-stack-key").id
    )
    destroy(second)
