"""The Availability Zones of workers and head, with held capacity and in a deployed stack."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pulumi_aws as aws
import pytest

from infra.lookups import account
from infra.lookups.account import AccountFacts, ReservationFacts
from infra.lookups.subnet import HEAD_SUBNET_ROLE
from rehearsal.adapter.deployment import Deployment
from rehearsal.adapter.static_account import StaticAccount
from rehearsal.adapter.static_ec2 import SUBNET, VPC, StaticNetwork, StaticSubnet
from tests.infra.conftest import ROOT, stack_config
from trainyard.aws import tags
from trainyard.config import CONFIG_KEY
from trainyard.config.loader import load_settings

A, B, C = (f"us-east-1{letter}" for letter in "abc")
SUBNET_TYPE = "aws:ec2/subnet:Subnet"


def worker_zones(
    *, held: str | None = None, head: str | None = None, zones: tuple[str, ...] | None = None, stack: str = "local"
) -> tuple[str, ...]:
    """Return the zones of the workers. `held`: zone of held capacity; `head`: zone of the deployed head."""
    raw = {**stack_config(stack)[CONFIG_KEY], "capacity": {"zones": list(zones)} if zones else {}}
    settings = load_settings(raw, ROOT, stack)
    facts = AccountFacts(
        partition="aws",
        dns_suffix="amazonaws.com",
        region="us-east-1",
        account="123456789012",
        zones=(A, B, C),
        offers=frozenset((zone, name) for zone in (A, B, C) for name in settings.instance_types),
        held=held_in(held) if held else None,
        head_zone=head,
    )
    return facts.worker_zones(settings)


def held_in(zone: str) -> ReservationFacts:
    return ReservationFacts(
        id="cr-0123456789abcdef0",
        instance_type="p4d.24xlarge",
        zone=zone,
        instances=4,
        available=4,
        placement_group_arn=None,
        state="active",
        is_capacity_block=False,
        is_interruptible=False,
        start_time=None,
        end_time=None,
    )


def test_new_stack_has_its_head_in_the_zone_of_the_held_capacity() -> None:
    assert worker_zones(held=B) == (B, A, C)


def test_deployed_head_keeps_its_zone_and_workers_may_use_the_held_capacity() -> None:
    """Subnets of all zones remain, so that no subnet with nodes is deleted."""
    assert worker_zones(held=B, head=A) == (A, B, C)


def test_zones_remain_after_the_end_of_the_held_capacity() -> None:
    assert worker_zones(head=B) == (B, A, C)


def test_head_in_configured_zones_keeps_its_zone() -> None:
    assert worker_zones(held=B, head=A, zones=(A, B)) == (A, B)


def test_configured_zones_replace_the_zone_of_the_head() -> None:
    assert worker_zones(head=A, zones=(B, C)) == (B, C)


def test_stack_with_a_file_system_has_one_zone() -> None:
    assert worker_zones(held=B, stack="a100-cluster") == (B,)


def test_zone_of_the_deployed_head_is_kept(changed: Callable[..., Deployment], monkeypatch: pytest.MonkeyPatch) -> None:
    find = StaticAccount._tagged_resources

    def find_subnet(self: StaticAccount, arguments: Mapping[str, Any]) -> dict[str, Any]:
        if arguments["resourceTypeFilters"] != ["ec2:subnet"]:
            return find(self, arguments)
        arn = f"arn:aws:ec2:us-east-1:123456789012:subnet/{SUBNET}"
        return {"resourceTagMappingLists": [{"resourceArn": arn, "tags": {}, "complianceDetails": []}]}

    monkeypatch.setattr(StaticAccount, "_tagged_resources", find_subnet)
    subnet = StaticSubnet(id=SUBNET, availability_zone=B)
    run = changed(account={"networks": {VPC: StaticNetwork(subnets=(subnet,))}})
    zones = {each.name: each.inputs["availabilityZone"] for each in run.resources_of_type(SUBNET_TYPE)}
    assert zones == {"private": B, "public": B, "private-a": A, "private-c": C}
    assert run.resource(SUBNET_TYPE, "private").inputs["tags"][tags.ROLE] == HEAD_SUBNET_ROLE


@pytest.mark.parametrize(("state", "is_usable"), [("active", True), ("pending", True), ("cancelled", False)])
def test_held_capacity_is_usable_while_it_is_pending(
    monkeypatch: pytest.MonkeyPatch, state: str, is_usable: bool
) -> None:
    """EC2 may need minutes to activate a reservation; the tagging API also lists those that have ended."""
    arn = SimpleNamespace(resource_arn="arn:aws:ec2:us-east-1:123456789012:capacity-reservation/cr-0123456789abcdef0")
    tagged = SimpleNamespace(resource_tag_mapping_lists=[arn])
    monkeypatch.setattr(aws.resourcegroupstaggingapi, "get_resources", lambda **_: tagged)
    monkeypatch.setattr(account, "look_up_reservation", lambda path, name: replace(held_in(A), state=state))
    assert (account.look_up_held_capacity("local") is not None) == is_usable
