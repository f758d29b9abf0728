"""Interruptible Capacity Reservations: creation, launches, and reclaims with their notice."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rehearsal.aws.ec2.interruptible import COMPLETION, WARNING
from rehearsal.aws.faults import Reclaim
from rehearsal.aws.process import EmulatedAws
from rehearsal.aws.seed_models import AccountSeed, SeedReservation
from rehearsal.aws.timing import Timing
from rehearsal.hypervisor.metadata import InstanceMetadata
from tests.rehearsal.aws.conftest import Client, Network
from tests.rehearsal.aws.ec2.test_reservations import describe, launch, refused, reserve, targeting, terminate_all
from tests.rehearsal.aws.instances import instance_record

MARKET = {"InstanceMarketOptions": {"MarketType": "interruptible-capacity-reservation"}}


@pytest.fixture(autouse=True)
def clean(aws: EmulatedAws, client: Client) -> Iterator[None]:
    """Remove faults, instances and reservations after each test."""
    yield
    aws.clear_faults()
    aws.set_timing(Timing())
    terminate_all(aws, client)
    aws.advance_clock(600)  # reclaims in progress complete
    for reservation in client("ec2").describe_capacity_reservations()["CapacityReservations"]:
        if reservation["State"] == "active" and reservation["ReservationType"] == "default":
            release(client, reservation)


def release(client: Client, reservation: dict[str, Any]) -> None:
    """Cancel a reservation and the interruptible one that was created from it."""
    name = reservation["CapacityReservationId"]
    if reservation.get("InterruptibleCapacityAllocation", {}).get("Status") == "active":
        update(client, name, 0, ZeroSizePreference="default")
    if not reservation["Interruptible"]:
        client("ec2").cancel_capacity_reservation(CapacityReservationId=name)


@pytest.fixture
def source(client: Client) -> str:
    """A reservation for three instances."""
    return reserve(client, 3, InstanceMatchCriteria="targeted")


def allocate(client: Client, source: str, count: int, **parameters: Any) -> str:
    """Return the id of a new interruptible reservation."""
    response = client("ec2").create_interruptible_capacity_reservation_allocation(
        CapacityReservationId=source, InstanceCount=count, **parameters
    )
    assert (response["SourceCapacityReservationId"], response["TargetInstanceCount"]) == (source, count)
    return str(describe(client, source)["InterruptibleCapacityAllocation"]["InterruptibleCapacityReservationId"])


def update(client: Client, source: str, target: int, **parameters: Any) -> dict[str, Any]:
    return dict(
        client("ec2").update_interruptible_capacity_reservation_allocation(
            CapacityReservationId=source, TargetInstanceCount=target, **parameters
        )
    )


def into(reservation: str) -> dict[str, Any]:
    """Launch parameters for an interruptible reservation."""
    return {**MARKET, **targeting(reservation)}


def status(client: Client, source: str) -> tuple[str, int, int]:
    allocation = describe(client, source)["InterruptibleCapacityAllocation"]
    return allocation["Status"], allocation["InstanceCount"], allocation["TargetInstanceCount"]


def test_allocated_instances_are_moved_from_the_source(client: Client, source: str) -> None:
    tags = [{"Key": "team", "Value": "research"}]
    specification = [{"ResourceType": "capacity-reservation", "Tags": tags}]
    name = allocate(client, source, 2, TagSpecifications=specification)
    described = describe(client, name)
    assert (described["Interruptible"], described["TotalInstanceCount"], described["Tags"]) == (True, 2, tags)
    assert described["InterruptionInfo"] == {"SourceCapacityReservationId": source, "InterruptionType": "adhoc"}
    assert (described["InstanceMatchCriteria"], described["State"]) == ("targeted", "active")
    assert (describe(client, source)["TotalInstanceCount"], status(client, source)) == (1, ("active", 2, 2))
    assert describe(client, source)["Interruptible"] is False


def test_only_unused_instances_are_allocated(client: Client, network: Network, source: str) -> None:
    launch(client, network, 2, **targeting(source))
    assert refused(lambda: allocate(client, source, 2)) == "InvalidParameterValue"
    assert allocate(client, source, 1)


def test_source_with_an_end_date_is_refused(client: Client, aws: EmulatedAws) -> None:
    name = reserve(client, 1, EndDateType="limited", EndDate=int(aws.now()) + 3600)
    assert refused(lambda: allocate(client, name, 1)) == "InvalidCapacityReservationState"


def test_second_allocation_is_refused(client: Client, source: str) -> None:
    name = allocate(client, source, 1)
    assert refused(lambda: allocate(client, source, 1)) == "OperationNotPermitted"
    assert refused(lambda: allocate(client, name, 1)) == "OperationNotPermitted"


def test_client_token_creates_one_allocation(client: Client, source: str, name: str) -> None:
    assert allocate(client, source, 1, ClientToken=name) == allocate(client, source, 1, ClientToken=name)


def test_interruptible_reservation_is_changed_through_its_source_only(client: Client, source: str) -> None:
    name, ec2 = allocate(client, source, 1), client("ec2")
    changed = refused(lambda: ec2.modify_capacity_reservation(CapacityReservationId=name, InstanceCount=2))
    cancelled = refused(lambda: ec2.cancel_capacity_reservation(CapacityReservationId=name))
    assert (changed, cancelled) == ("OperationNotPermitted", "OperationNotPermitted")
    update(client, source, 3)
    assert (describe(client, name)["TotalInstanceCount"], describe(client, source)["TotalInstanceCount"]) == (3, 0)
    assert refused(lambda: update(client, source, 4)) == "InvalidParameterValue"


def test_launch_requires_market_type_and_target(client: Client, network: Network, source: str) -> None:
    name = allocate(client, source, 1)
    for parameters in (MARKET, targeting(name), {**MARKET, **targeting(source)}):
        assert refused(lambda parameters=parameters: launch(client, network, **parameters)) == (  # type: ignore[misc]
            "InvalidParameterCombination"
        )
    (instance,) = launch(client, network, **into(name))
    described = client("ec2").describe_instances(InstanceIds=[instance])["Reservations"][0]["Instances"][0]
    assert described["InstanceLifecycle"] == "interruptible-capacity-reservation"
    assert described["CapacityReservationId"] == name
    assert refused(lambda: launch(client, network, **into(name))) == "ReservationCapacityExceeded"


def test_available_instances_are_reclaimed_first(
    client: Client, network: Network, aws: EmulatedAws, source: str
) -> None:
    (instance,) = launch(client, network, **into(allocate(client, source, 3)))
    response = update(client, source, 1)
    assert (response["Status"], response["InstanceCount"]) == ("active", 1)
    aws.advance_clock(300)
    assert instance_record(aws, instance).state == "running"
    assert describe(client, source)["AvailableInstanceCount"] == 2


def test_running_instance_terminates_two_minutes_after_the_reclaim(
    client: Client, network: Network, aws: EmulatedAws, source: str
) -> None:
    aws.set_timing(Timing(shutting_down_seconds=60))
    name = allocate(client, source, 2)
    instances = launch(client, network, 2, **into(name))
    assert update(client, source, 1)["Status"] == "updating"
    assert refused(lambda: update(client, source, 2)) == "OperationNotPermitted"
    aws.advance_clock(115)
    assert [instance_record(aws, each).state for each in instances] == ["running", "running"]
    aws.advance_clock(10)
    assert sorted(instance_record(aws, each).state for each in instances) == ["running", "shutting-down"]
    assert (status(client, source), describe(client, source)["TotalInstanceCount"]) == (("updating", 2, 1), 1)
    aws.advance_clock(60)
    assert status(client, source) == ("active", 1, 1)
    assert (describe(client, source)["AvailableInstanceCount"], describe(client, name)["TotalInstanceCount"]) == (2, 1)


def test_metadata_has_no_notice_of_a_reclaim(client: Client, network: Network, aws: EmulatedAws, source: str) -> None:
    """The EC2 user guide documents events only."""
    (instance,) = launch(client, network, **into(allocate(client, source, 1)))
    update(client, source, 0)
    metadata = InstanceMetadata(lambda: instance_record(aws, instance).model_dump(), lambda role: {})
    assert metadata.page("/meta-data/spot/instance-action") is None


def test_instance_that_its_user_terminates_completes_the_reclaim(
    client: Client, network: Network, aws: EmulatedAws, source: str
) -> None:
    aws.set_timing(Timing(shutting_down_seconds=60))
    first, _ = launch(client, network, 2, **into(allocate(client, source, 2)))
    client("ec2").terminate_instances(InstanceIds=[first])
    update(client, source, 0)
    aws.advance_clock(61)
    assert status(client, source) == ("updating", 1, 0)
    aws.advance_clock(121)
    assert describe(client, source)["AvailableInstanceCount"] == 3


@pytest.mark.parametrize(("preference", "state"), [("default", "cancelled"), ("retain", "active")])
def test_preference_decides_on_an_empty_reservation(client: Client, source: str, preference: str, state: str) -> None:
    name = allocate(client, source, 1, ZeroSizePreference=preference)
    update(client, source, 0)
    assert describe(client, name)["State"] == state


def test_group_finds_no_capacity_to_replace_a_reclaimed_instance(
    client: Client, aws: EmulatedAws, group: Callable[..., str], source: str
) -> None:
    name, scaling = group(into(allocate(client, source, 1, ZeroSizePreference="retain"))), client("autoscaling")
    scaling.set_desired_capacity(AutoScalingGroupName=name, DesiredCapacity=1)

    def members() -> list[str]:
        described = scaling.describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"]
        return [entry["InstanceId"] for entry in described[0]["Instances"]]

    (first,) = members()
    aws.inject(Reclaim(seconds=0, return_seconds=600))
    assert members() == [first]
    aws.advance_clock(125)
    assert members() == []
    aws.advance_clock(600)
    (second,) = members()
    assert second != first


def test_launch_instances_is_not_documented(client: Client, group: Callable[..., str], source: str) -> None:
    name = group(into(allocate(client, source, 1)))
    launched = refused(
        lambda: client("autoscaling").launch_instances(AutoScalingGroupName=name, RequestedCapacity=1, ClientToken="t")
    )
    assert launched == "NotImplemented"


def test_events_report_notice_and_completion(
    client: Client, network: Network, aws: EmulatedAws, source: str, name: str
) -> None:
    sqs, events = client("sqs"), client("events")
    queue = sqs.create_queue(QueueName=name)["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    events.put_rule(Name=name, EventPattern=json.dumps({"source": ["aws.ec2"]}))
    events.put_targets(Rule=name, Targets=[{"Id": "queue", "Arn": arn}])

    def received() -> list[dict[str, Any]]:
        messages = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10).get("Messages", [])
        return [json.loads(message["Body"]) for message in messages]

    try:
        (instance,) = launch(client, network, **into(allocate(client, source, 1)))
        update(client, source, 0)
        (warning,) = received()
        assert (warning["detail-type"], warning["detail"]["instance-id"]) == (WARNING, instance)
        assert warning["detail"]["instance-action"] == "terminate"
        aws.advance_clock(121)
        (completion,) = received()
        assert (completion["detail-type"], completion["detail"]["sourceCapacityReservationId"]) == (COMPLETION, source)
    finally:
        events.remove_targets(Rule=name, Ids=["queue"])
        events.delete_rule(Name=name)
        sqs.delete_queue(QueueUrl=queue)


def test_fault_reclaims_running_instances(client: Client, network: Network, aws: EmulatedAws, source: str) -> None:
    instances = launch(client, network, 2, **into(allocate(client, source, 3)))
    aws.inject(Reclaim(seconds=600, count=2))
    aws.advance_clock(590)
    assert status(client, source) == ("active", 3, 3)
    aws.advance_clock(20)
    assert status(client, source) == ("updating", 2, 0)
    aws.advance_clock(121)
    assert {instance_record(aws, each).state for each in instances} == {"terminated"}


def test_source_of_a_shared_reservation_is_not_described(client: Client, aws: EmulatedAws) -> None:
    name, owner = "cr-0000000000005a7ed", "210987654321"
    end = aws.now() + 10  # afterwards it uses no capacity of other tests
    seed = SeedReservation(
        id=name, instance_type="c7i.xlarge", zone="us-east-1a", count=1, interruptible=True, owner=owner, end=end
    )
    aws.seed(AccountSeed(region="us-east-1", reservations=(seed,)))
    shared = describe(client, name)
    assert (shared["OwnerId"], shared["Interruptible"]) == (owner, True)
    source = shared["InterruptionInfo"]["SourceCapacityReservationId"]
    assert refused(lambda: describe(client, source)) == "InvalidCapacityReservationId.NotFound"
    aws.advance_clock(11)
