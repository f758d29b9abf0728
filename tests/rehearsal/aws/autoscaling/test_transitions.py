"""Auto Scaling while instances are pending or shutting-down."""

from collections.abc import Callable, Iterator

import pytest

from rehearsal.aws.faults import Capacity, ScalingActivity
from rehearsal.aws.process import EmulatedAws
from rehearsal.aws.timing import Timing
from tests.rehearsal.aws.autoscaling.test_activities import members, set_capacity
from tests.rehearsal.aws.conftest import Client
from tests.rehearsal.aws.ec2.test_reservations import refused

PENDING_SECONDS, SHUTTING_DOWN_SECONDS = 120.0, 300.0


@pytest.fixture(autouse=True)
def timing(aws: EmulatedAws) -> Iterator[None]:
    aws.set_timing(Timing(pending_seconds=PENDING_SECONDS, shutting_down_seconds=SHUTTING_DOWN_SECONDS))
    yield
    aws.set_timing(Timing())
    aws.advance_clock(PENDING_SECONDS + SHUTTING_DOWN_SECONDS)


@pytest.fixture
def pending(aws: EmulatedAws, client: Client, group: Callable[..., str]) -> Iterator[tuple[str, str]]:
    """A group and its instance, which is pending."""
    name = group()
    set_capacity(client, name, 1)
    (instance,) = members(client, name)
    yield name, instance
    aws.advance_clock(PENDING_SECONDS)  # a group with a pending instance cannot be deleted


def states(client: Client, name: str) -> list[str]:
    (described,) = client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"]
    return [instance["LifecycleState"] for instance in described["Instances"]]


def terminate(client: Client, instance: str) -> None:
    client("autoscaling").terminate_instance_in_auto_scaling_group(
        InstanceId=instance, ShouldDecrementDesiredCapacity=True
    )


def test_instance_is_in_service_once_it_runs(aws: EmulatedAws, client: Client, pending: tuple[str, str]) -> None:
    assert states(client, pending[0]) == ["Pending"]
    aws.advance_clock(PENDING_SECONDS)
    assert states(client, pending[0]) == ["InService"]


def test_termination_is_refused_while_an_instance_is_pending(
    aws: EmulatedAws, client: Client, pending: tuple[str, str]
) -> None:
    assert refused(lambda: terminate(client, pending[1])) == "ScalingActivityInProgress"
    aws.advance_clock(PENDING_SECONDS)
    terminate(client, pending[1])


def test_deletion_is_refused_while_an_instance_is_pending(client: Client, pending: tuple[str, str]) -> None:
    deletion = {"AutoScalingGroupName": pending[0], "ForceDelete": True}
    code = refused(lambda: client("autoscaling").delete_auto_scaling_group(**deletion))
    assert code == "ScalingActivityInProgress"


def test_terminated_instance_is_removed_from_its_group(
    aws: EmulatedAws, client: Client, pending: tuple[str, str]
) -> None:
    aws.advance_clock(PENDING_SECONDS)
    terminate(client, pending[1])
    assert states(client, pending[0]) == ["Terminating:Proceed"]
    aws.advance_clock(SHUTTING_DOWN_SECONDS)
    assert states(client, pending[0]) == []


def test_capacity_is_refused_during_scaling_activities(
    aws: EmulatedAws, client: Client, group: Callable[..., str]
) -> None:
    name = group()
    aws.inject(ScalingActivity(times=1))
    assert refused(lambda: set_capacity(client, name, 1)) == "ScalingActivityInProgress"
    set_capacity(client, name, 1)
    assert states(client, name) == ["Pending"]
    aws.advance_clock(PENDING_SECONDS)


LAUNCH_FIRST = {"MinHealthyPercentage": 100, "MaxHealthyPercentage": 200}


@pytest.fixture
def in_service(aws: EmulatedAws, client: Client, group: Callable[..., str]) -> tuple[str, str]:
    """A group that launches before it terminates, and its instance, which is in service."""
    name = group(InstanceMaintenancePolicy=LAUNCH_FIRST)
    set_capacity(client, name, 1)
    aws.advance_clock(PENDING_SECONDS)
    (instance,) = members(client, name)
    return name, instance


def replace(client: Client, instance: str) -> None:
    client("autoscaling").set_instance_health(
        InstanceId=instance, HealthStatus="Unhealthy", ShouldRespectGracePeriod=False
    )


def test_unhealthy_instance_runs_until_its_replacement_is_in_service(
    aws: EmulatedAws, client: Client, in_service: tuple[str, str]
) -> None:
    name, instance = in_service
    replace(client, instance)
    assert states(client, name) == ["InService", "Pending"]
    aws.advance_clock(PENDING_SECONDS)
    assert states(client, name) == ["Terminating:Proceed", "InService"]


def test_unhealthy_instance_without_capacity_for_a_replacement_runs_until_it_is_terminated(
    aws: EmulatedAws, client: Client, in_service: tuple[str, str]
) -> None:
    name, instance = in_service
    limit = Capacity(limit=1)
    aws.inject(limit)
    replace(client, instance)
    aws.advance_clock(PENDING_SECONDS)
    assert states(client, name) == ["InService"]
    aws.remove_faults([limit])
    client("autoscaling").terminate_instance_in_auto_scaling_group(
        InstanceId=instance, ShouldDecrementDesiredCapacity=False
    )
    assert states(client, name) == ["Terminating:Proceed", "Pending"]
    aws.advance_clock(PENDING_SECONDS)


def test_unhealthy_instance_is_terminated_when_the_group_is_scaled_to_zero(
    aws: EmulatedAws, client: Client, in_service: tuple[str, str]
) -> None:
    name, instance = in_service
    replace(client, instance)
    aws.advance_clock(PENDING_SECONDS / 2)
    set_capacity(client, name, 0)
    aws.advance_clock(PENDING_SECONDS)
    assert set(states(client, name)) == {"Terminating:Proceed"}


def test_invalid_maintenance_policy_is_refused(client: Client, group: Callable[..., str]) -> None:
    policy = {"MinHealthyPercentage": 50, "MaxHealthyPercentage": 200}
    assert refused(lambda: group(InstanceMaintenancePolicy=policy)) == "ValidationError"
