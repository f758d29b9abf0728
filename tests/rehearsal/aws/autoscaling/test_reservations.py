"""Auto Scaling groups that launch into a capacity reservation."""

from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from rehearsal.aws.process import EmulatedAws
from rehearsal.aws.timing import Timing
from tests.rehearsal.aws.autoscaling.test_launch_instances import describe_group, ids_of, launched
from tests.rehearsal.aws.conftest import Client
from tests.rehearsal.aws.ec2.test_reservations import clean, reservations_of, reserve

__all__ = ["clean"]


def only_in(reservation: str) -> dict[str, Any]:
    return {
        "CapacityReservationPreference": "capacity-reservations-only",
        "CapacityReservationTarget": {"CapacityReservationIds": [reservation]},
    }


def test_group_launches_into_its_reservation(client: Client, group: Callable[..., str]) -> None:
    name, reservation = group(), reserve(client, 2, InstanceMatchCriteria="targeted")
    specification = only_in(reservation)
    client("autoscaling").update_auto_scaling_group(
        AutoScalingGroupName=name, CapacityReservationSpecification=specification
    )
    assert describe_group(client, name)["CapacityReservationSpecification"] == specification
    assert reservations_of(client, ids_of(launched(client, name, 2))) == [reservation, reservation]


def test_group_launches_no_more_than_its_reservation_has(client: Client, group: Callable[..., str]) -> None:
    reservation = reserve(client, 2, InstanceMatchCriteria="targeted")
    name = group(CapacityReservationSpecification=only_in(reservation))
    assert len(ids_of(launched(client, name, 3))) == 2


def test_group_replaces_into_its_reservation_when_it_has_capacity_again(
    client: Client, group: Callable[..., str], aws: EmulatedAws
) -> None:
    reservation = reserve(client, 1, InstanceMatchCriteria="targeted")
    name = group(CapacityReservationSpecification=only_in(reservation))
    (first,) = ids_of(launched(client, name, 1))
    aws.set_timing(Timing(reserved_capacity_return_seconds=300))
    client("ec2").terminate_instances(InstanceIds=[first])
    assert describe_group(client, name)["Instances"] == []
    aws.advance_clock(400)
    aws.set_timing(Timing())
    (replacement,) = describe_group(client, name)["Instances"]
    assert reservations_of(client, [replacement["InstanceId"]]) == [reservation]


def test_preference_none_has_no_target(client: Client, group: Callable[..., str]) -> None:
    reservation = reserve(client, 1, InstanceMatchCriteria="targeted")
    specification = {**only_in(reservation), "CapacityReservationPreference": "none"}
    with pytest.raises(ClientError, match="CapacityReservationTarget"):
        group(CapacityReservationSpecification=specification)
