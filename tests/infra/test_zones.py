"""The Availability Zones of workers and head, with held capacity and in a deployed stack."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pulumi_aws as aws
import pytest

from infra.lookups import account
from infra.lookups.account import AccountFacts, ReservationFacts
from infra.lookups.subnet import HEAD_SUBNET_ROLE
from infra.validators.account import unsearched_zones
from rehearsal.adapter.deployment import Deployment
from rehearsal.adapter.mocks import up
from rehearsal.adapter.static_account import StaticAccount
from rehearsal.adapter.static_ec2 import SUBNET, VPC, StaticNetwork, StaticSubnet
from tests.infra.conftest import ROOT
from tools.stack_files import read_stack_file
from trainyard.aws import tags
from trainyard.config import CONFIG_KEY
from trainyard.config.loader import load_settings
from trainyard.config.settings import StackSettings

A, B, C = (f"us-east-1{letter}" for letter in "abc")
SUBNET_TYPE = "aws:ec2/subnet:Subnet"


def facts_of(settings: StackSettings, *, held: str | None = None, head: str | None = None) -> AccountFacts:
    """Return the facts of an account with three zones. `held`: zone of held capacity; `head`: zone of the head."""
    return AccountFacts(
        partition="aws",
        dns_suffix="amazonaws.com",
        region="us-east-1",
        account="123456789012",
        zones=(A, B, C),
        offers=frozenset((zone, name) for zone in (A, B, C) for name in settings.instance_types),
        held=held_in(held) if held else None,
        head_zone=head,
    )


def settings_of(stack: str, zones: tuple[str, ...] | None = None, **capacity: Any) -> StackSettings:
    """Return the settings of a shipped stack. `zones` and `capacity`: settings of its capacity."""
    changes = {**capacity, "zones": list(zones)} if zones else capacity
    return load_settings({**read_stack_file(stack)[CONFIG_KEY], "capacity": changes}, ROOT, stack)


def worker_zones(
    *, held: str | None = None, head: str | None = None, zones: tuple[str, ...] | None = None, stack: str = "local"
) -> tuple[str, ...]:
    """Return the zones of the workers. `held`: zone of held capacity; `head`: zone of the deployed head."""
    settings = settings_of(stack, zones)
    return facts_of(settings, held=held, head=head).worker_zones(settings)


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


@pytest.mark.parametrize(
    ("stack", "capacity", "facts", "warns"),
    [
        ("a100-cluster", {}, {}, True),
        ("a100-cluster", {"zones": (A,)}, {}, False),
        ("a100-cluster", {"reserve": False}, {}, False),
        ("a100-cluster", {}, {"held": B}, False),
        ("a100-cluster", {}, {"head": B}, False),
        ("h100-cluster", {}, {}, False),  # no file system
    ],
)
def test_new_stack_with_a_file_system_warns_that_one_zone_is_searched(
    stack: str, capacity: dict[str, Any], facts: dict[str, str], warns: bool
) -> None:
    settings = settings_of(stack, **capacity)
    warning = unsearched_zones(stack, settings, facts_of(settings, **facts))
    assert (warning is not None) == warns
    assert warning is None or "trainyard reserve" in warning


def test_preview_warns_that_one_zone_is_searched(caplog: pytest.LogCaptureFixture) -> None:
    up(read_stack_file("a100-cluster"), "a100-cluster", ROOT, preview=True, account=StaticAccount())
    assert [
        each.getMessage()
        for each in caplog.records
        if "trainyard reserve -s a100-cluster searches" in each.getMessage()
    ]


def test_zone_of_the_deployed_head_is_kept(changed: Callable[..., Deployment]) -> None:
    subnet = StaticSubnet(id=SUBNET, availability_zone=B)
    run = changed(account={"networks": {VPC: StaticNetwork(subnets=(subnet,))}, "head_subnet": SUBNET})
    expected = {"private": B, "public": B, "private-a": A, "private-c": C}
    zones = {each.name: each.inputs["availabilityZone"] for each in run.resources_of_type(SUBNET_TYPE)}
    assert zones == {f"network-{name}": zone for name, zone in expected.items()}
    assert run.resource(SUBNET_TYPE, "network-private").inputs["tags"][tags.ROLE] == HEAD_SUBNET_ROLE


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
