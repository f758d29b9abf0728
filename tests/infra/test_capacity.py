"""Purchase options: launch templates and groups for each key of `capacity`."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from rehearsal.adapter.deployment import Deployment
from rehearsal.adapter.mocks import up
from rehearsal.adapter.static_account import StaticAccount
from rehearsal.adapter.static_ec2 import RESERVATION, reservation_properties
from tests.infra.conftest import ROOT, templates_of
from tools.stack_files import read_stack_file
from trainyard.models.manifest import Manifest

GROUP = "aws:autoscaling/group:Group"
TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"
WORKER_RESERVATION = {"InstanceType": "c7i.xlarge", "ReservationType": "default"}


def purchase_options(run: Deployment) -> dict[str, dict[str, Any]]:
    """Group -> market options and reservation of its template."""
    keys = ("instanceMarketOptions", "capacityReservationSpecification")
    return {
        template.name.split("-")[0]: {key: template.inputs[key] for key in keys if key in template.inputs}
        for template in templates_of(run)
    }


def manifest_of(run: Deployment) -> Manifest:
    return Manifest.model_validate_json(
        run.resource("aws:s3/bucketObjectv2:BucketObjectv2", "manifest").inputs["content"]
    )


@pytest.mark.parametrize(
    ("capacity", "expected"),
    [
        ({"on_demand": {}}, {"capacityReservationSpecification": {"capacityReservationPreference": "none"}}),
        ({"spot": {}}, {}),  # the group's policy requests Spot Instances
        ({"reservation": {}}, {"capacityReservationSpecification": {"capacityReservationPreference": "open"}}),
        (
            {"reservation": {"id": RESERVATION}},
            {"capacityReservationSpecification": {"capacityReservationTarget": {"capacityReservationId": RESERVATION}}},
        ),
    ],
)
def test_launch_template_has_the_purchase_option(
    changed: Callable[..., Deployment], capacity: dict[str, Any], expected: dict[str, Any]
) -> None:
    run = changed(
        account={"reservations": {RESERVATION: reservation_properties(**WORKER_RESERVATION)}}, capacity=capacity
    )
    assert purchase_options(run) == {"workers": expected}


def test_capacity_block_has_its_market_type_and_no_placement_group(changed: Callable[..., Deployment]) -> None:
    run = changed("h200-cluster")
    assert purchase_options(run)["workers"] == {
        "instanceMarketOptions": {"marketType": "capacity-block"},
        "capacityReservationSpecification": {"capacityReservationTarget": {"capacityReservationId": RESERVATION}},
    }
    assert not run.resources_of_type("aws:ec2/placementGroup:PlacementGroup")


def test_interruptible_reservation_has_its_market_type(changed: Callable[..., Deployment]) -> None:
    properties = reservation_properties(**WORKER_RESERVATION, Interruptible=True)
    capacity = {"reservation": {"id": RESERVATION, "interruptible": True}}
    run = changed(account={"reservations": {RESERVATION: properties}}, capacity=capacity)
    assert purchase_options(run)["workers"] == {
        "instanceMarketOptions": {"marketType": "interruptible-capacity-reservation"},
        "capacityReservationSpecification": {"capacityReservationTarget": {"capacityReservationId": RESERVATION}},
    }
    (group,) = manifest_of(run).groups
    assert (group.market, group.interruptible, group.launch_method) == (
        "interruptible-capacity-reservation",
        True,
        "desired-capacity",
    )


def test_capacity_block_uses_desired_capacity_and_ends_early(
    changed: Callable[..., Deployment],
) -> None:
    (group,) = manifest_of(changed("h200-cluster")).groups
    assert group.launch_method == "desired-capacity"
    assert group.capacity_end_time == 4070950200.0 - 1800 - 600  # 2099-01-01T11:30:00Z


def test_spot_above_base_has_two_groups(changed: Callable[..., Deployment]) -> None:
    run = changed("spot-cluster")
    sizes = {group.name: group.max_size for group in manifest_of(run).groups}
    assert sizes == {"workers": 1, "spot": 4}  # with a replacement before the termination of a node
    assert "instanceMarketOptions" not in purchase_options(run)["workers"]
    assert purchase_options(run)["spot"] == {}
    groups = {group.name: (group.nodes, group.spot, group.launch_method) for group in manifest_of(run).groups}
    assert groups == {"workers": (1, False, "launch-instances"), "spot": (3, True, "launch-instances")}


def policy_of(run: Deployment, group: str) -> dict[str, Any]:
    return dict(run.resource(GROUP, group).inputs["mixedInstancesPolicy"])


def test_spot_group_has_a_policy_that_is_wholly_spot(changed: Callable[..., Deployment]) -> None:
    run = changed(capacity={"spot": {"max_price_usd": 0.1}})
    assert "launchTemplate" not in run.resource(GROUP, "workers").inputs
    assert policy_of(run, "workers")["instancesDistribution"] == {
        "onDemandBaseCapacity": 0,
        "onDemandPercentageAboveBaseCapacity": 0,
        "spotAllocationStrategy": "price-capacity-optimized",
        "spotMaxPrice": "0.1",
    }


@pytest.mark.parametrize(
    ("spot", "others"),
    [
        ({}, {}),
        ({"instance_types": ["g6e.16xlarge", "g6e.4xlarge"]}, {"g6e.16xlarge": 2, "g6e.4xlarge": 1}),
        (
            {"equal_gpus": True},
            {"g6e.16xlarge": 2, "g6e.2xlarge": 1, "g6e.4xlarge": 1, "g6e.xlarge": 1},
        ),
    ],
)
def test_spot_group_has_the_instance_types_of_the_pool(
    changed: Callable[..., Deployment], spot: dict[str, Any], others: dict[str, int]
) -> None:
    run = changed("spot-cluster", instance_type="g6e.8xlarge", network={"efa": False}, capacity={"spot": spot})
    overrides = policy_of(run, "workers")["launchTemplate"]["overrides"]
    assert overrides[0] == {"instanceType": "g6e.8xlarge"}
    assert {override["instanceType"] for override in overrides} == {"g6e.8xlarge", *others}
    (group,) = manifest_of(run).groups
    assert group.other_instance_types == others


@pytest.mark.parametrize(("configured", "expected"), [(None, set()), (True, {"workers"})])
def test_spot_instances_are_in_no_placement_group_by_default(
    changed: Callable[..., Deployment], configured: bool | None, expected: set[str]
) -> None:
    run = changed("spot-cluster", capacity={"spot": {}}, network={"placement_group": configured})
    placed = {template.name.split("-")[0] for template in templates_of(run) if "placement" in template.inputs}
    assert placed == expected


def test_base_may_use_a_reservation(changed: Callable[..., Deployment]) -> None:
    capacity = {"spot_above_base": {"base_nodes": 1, "base_reservation": RESERVATION}}
    run = changed(
        account={"reservations": {RESERVATION: reservation_properties(**WORKER_RESERVATION)}}, capacity=capacity
    )
    target = purchase_options(run)["workers"]["capacityReservationSpecification"]["capacityReservationTarget"]
    assert target == {"capacityReservationId": RESERVATION}
    assert "capacityReservationSpecification" not in purchase_options(run)["spot"]
    end_times = {group.name: group.capacity_end_time for group in manifest_of(run).groups}
    assert end_times["workers"] is not None
    assert end_times["spot"] is None


@pytest.mark.parametrize(
    "properties",
    [{"State": "scheduled"}, {"State": "payment-pending"}, {"State": "scheduled", "TotalInstanceCount": 0}],
)
def test_launch_waits_for_a_capacity_block_that_was_bought(
    changed: Callable[..., Deployment], properties: dict[str, Any]
) -> None:
    scheduled = reservation_properties(StartDate="2098-01-01T11:30:00Z", AvailableInstanceCount=0, **properties)
    run = changed("h200-cluster", account={"reservations": {RESERVATION: scheduled}})
    (group,) = manifest_of(run).groups
    assert group.reservation == RESERVATION
    assert group.capacity_start_time == datetime(2098, 1, 1, 11, 30, tzinfo=UTC).timestamp()


def test_open_reservations_are_used_without_a_placement_group(changed: Callable[..., Deployment]) -> None:
    run = changed("a100-cluster", capacity={"reservation": {}})
    assert not run.resources_of_type("aws:ec2/placementGroup:PlacementGroup")


@pytest.mark.parametrize("group", [None, "team-group"])
def test_reservation_brings_its_placement_group(
    changed: Callable[..., Deployment], caplog: pytest.LogCaptureFixture, group: str | None
) -> None:
    """Some instances of a reservation do not fit into a group that it was not created in (eksctl issue 7949)."""
    arn = {"PlacementGroupArn": f"arn:aws:ec2:us-east-1:123456789012:placement-group/{group}"} if group else {}
    properties = reservation_properties(ReservationType="default", InstanceType="p4d.24xlarge", **arn)
    caplog.set_level("INFO")
    run = changed(
        "single-node",
        account={"reservations": {RESERVATION: properties}},
        nodes=2,
        guardrails={"max_cost_usd": 1000},
        network={},
        capacity={"reservation": {"id": RESERVATION}},
    )
    assert not run.resources_of_type("aws:ec2/placementGroup:PlacementGroup")
    placement = run.resource(TEMPLATE, "workers-deep-learning").inputs.get("placement")
    assert placement == ({"groupName": group} if group else None)
    placed = f"us-east-1a, {f'placement group {group}' if group else 'no placement group'}"
    assert any(placed in record.getMessage() for record in caplog.records)


def test_reservation_decides_the_availability_zone(changed: Callable[..., Deployment]) -> None:
    elsewhere = reservation_properties(**WORKER_RESERVATION, AvailabilityZone="us-east-1b")
    run = changed(account={"reservations": {RESERVATION: elsewhere}}, capacity={"reservation": {"id": RESERVATION}})
    assert run.resource("aws:ec2/subnet:Subnet", "network-private").inputs["availabilityZone"] == "us-east-1b"


def test_groups_are_tagged_with_their_names(changed: Callable[..., Deployment]) -> None:
    run = changed("spot-cluster")
    for group in run.resources_of_type(GROUP):
        tags = {tag["key"]: tag["value"] for tag in group.inputs["tags"]}
        assert tags["trainyard:role"] == group.name


def test_more_nodes_replace_no_resource(changed: Callable[..., Deployment], local: Deployment) -> None:
    """Updated in place: group, budget, manifest and launch."""
    larger = changed(nodes=4)
    assert larger.resources.keys() == local.resources.keys()
    differ = {
        resource.type.rpartition(":")[2]
        for urn, resource in larger.resources.items()
        if json.dumps(_without_source(resource.inputs), sort_keys=True)
        != json.dumps(_without_source(local.resources[urn].inputs), sort_keys=True)
    }
    assert differ == {"Group", "Budget", "BucketObjectv2", "Command"}


def _without_source(inputs: Any) -> dict[str, Any]:
    return {key: value for key, value in inputs.items() if key != "source"}


def test_ended_reservation_with_listed_tags_is_ignored() -> None:
    account = StaticAccount(held_capacity="cr-0123456789abcdef0")
    assert up(read_stack_file("a100-cluster"), "a100-cluster", ROOT, preview=True, account=account).resources
