"""Where instances come from: what launch templates and groups say for each key of `capacity`."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from rehearsal.adapter.graph import Deployment
from rehearsal.adapter.static_ec2 import RESERVATION, reservation
from tests.infra.conftest import templates_of
from trainyard.models.manifest import Manifest

GROUP = "aws:autoscaling/group:Group"
SPOT = {"spotInstanceType": "one-time", "instanceInterruptionBehavior": "terminate"}
OF_WORKERS = {"InstanceType": "c7i.xlarge", "ReservationType": "default"}


def asked(run: Deployment) -> dict[str, dict[str, Any]]:
    """Group -> market options and reservation of its template."""
    keys = ("instanceMarketOptions", "capacityReservationSpecification")
    return {
        one.name.split("-")[0]: {key: one.inputs[key] for key in keys if key in one.inputs} for one in templates_of(run)
    }


def manifest_of(run: Deployment) -> Manifest:
    return Manifest.model_validate_json(run.one("aws:s3/bucketObjectv2:BucketObjectv2", "manifest").inputs["content"])


@pytest.mark.parametrize(
    ("capacity", "wanted"),
    [
        ({"on_demand": {}}, {"capacityReservationSpecification": {"capacityReservationPreference": "none"}}),
        ({"spot": {}}, {"instanceMarketOptions": {"marketType": "spot", "spotOptions": SPOT}}),
        (
            {"spot": {"max_price_usd": 0.1}},
            {"instanceMarketOptions": {"marketType": "spot", "spotOptions": {**SPOT, "maxPrice": "0.1"}}},
        ),
        ({"reservation": {}}, {"capacityReservationSpecification": {"capacityReservationPreference": "open"}}),
        (
            {"reservation": {"id": RESERVATION}},
            {"capacityReservationSpecification": {"capacityReservationTarget": {"capacityReservationId": RESERVATION}}},
        ),
    ],
)
def test_template_asks_for_what_the_key_says(
    changed: Callable[..., Deployment], capacity: dict[str, Any], wanted: dict[str, Any]
) -> None:
    run = changed(account={"reservations": {RESERVATION: reservation(**OF_WORKERS)}}, capacity=capacity)
    assert asked(run) == {"workers": wanted}


def test_capacity_block_is_a_market_of_its_own_without_placement_group(changed: Callable[..., Deployment]) -> None:
    run = changed("h200-cluster")
    assert asked(run)["workers"] == {
        "instanceMarketOptions": {"marketType": "capacity-block"},
        "capacityReservationSpecification": {"capacityReservationTarget": {"capacityReservationId": RESERVATION}},
    }
    assert not run.of_type("aws:ec2/placementGroup:PlacementGroup")


def test_capacity_block_is_filled_by_desired_capacity_and_ends_before_aws_ends_it(
    changed: Callable[..., Deployment],
) -> None:
    (group,) = manifest_of(changed("h200-cluster")).groups
    assert group.launched_by == "desired-capacity"
    assert group.ends == 4070950200.0 - 1800 - 600  # 2099-01-01T11:30:00Z


def test_spot_above_a_base_is_two_groups_that_are_launched_each_at_once(changed: Callable[..., Deployment]) -> None:
    run = changed("spot-cluster")
    assert {one.name: one.inputs["maxSize"] for one in run.of_type(GROUP)} == {"workers": 1, "spot": 3}
    assert "instanceMarketOptions" not in asked(run)["workers"]
    assert asked(run)["spot"]["instanceMarketOptions"]["marketType"] == "spot"
    told = {group.name: (group.nodes, group.spot, group.launched_by) for group in manifest_of(run).groups}
    assert told == {"workers": (1, False, "launch-instances"), "spot": (3, True, "launch-instances")}


def test_base_may_come_of_a_reservation(changed: Callable[..., Deployment]) -> None:
    capacity = {"spot_above_base": {"base_nodes": 1, "base_reservation": RESERVATION}}
    run = changed(account={"reservations": {RESERVATION: reservation(**OF_WORKERS)}}, capacity=capacity)
    target = asked(run)["workers"]["capacityReservationSpecification"]["capacityReservationTarget"]
    assert target == {"capacityReservationId": RESERVATION}
    assert "capacityReservationSpecification" not in asked(run)["spot"]
    ends = {group.name: group.ends for group in manifest_of(run).groups}
    assert ends["workers"] is not None
    assert ends["spot"] is None


def test_reservation_decides_the_zone(changed: Callable[..., Deployment]) -> None:
    elsewhere = reservation(**OF_WORKERS, AvailabilityZone="us-east-1b")
    run = changed(account={"reservations": {RESERVATION: elsewhere}}, capacity={"reservation": {"id": RESERVATION}})
    assert run.one("aws:ec2/subnet:Subnet", "private").inputs["availabilityZone"] == "us-east-1b"


def test_groups_are_tagged_by_their_names(changed: Callable[..., Deployment]) -> None:
    run = changed("spot-cluster")
    for group in run.of_type(GROUP):
        tags = {tag["key"]: tag["value"] for tag in group.inputs["tags"]}
        assert tags["trainyard:role"] == group.name


def test_more_nodes_replace_nothing(changed: Callable[..., Deployment], local: Deployment) -> None:
    """In place: the group's maximum, the budget, the manifest, the launch."""
    grown = changed(nodes=4)
    assert grown.resources.keys() == local.resources.keys()
    differ = {
        one.type.rpartition(":")[2]
        for urn, one in grown.resources.items()
        if json.dumps(_told(one.inputs), sort_keys=True)
        != json.dumps(_told(local.resources[urn].inputs), sort_keys=True)
    }
    assert differ == {"Group", "Budget", "BucketObjectv2", "Command"}


def _told(inputs: Any) -> dict[str, Any]:
    return {key: value for key, value in inputs.items() if key != "source"}
