"""Instances are pending after a launch and shutting-down after a termination."""

from collections.abc import Iterator

import pytest
from botocore.exceptions import ClientError

from rehearsal.aws.faults import Capacity
from rehearsal.aws.process import EmulatedAws
from rehearsal.aws.timing import Timing
from tests.rehearsal.aws.conftest import Client, Network
from tests.rehearsal.aws.ec2.test_reservations import launch, terminate_all

PENDING_SECONDS, LARGE_PENDING_SECONDS = 120.0, 400.0
SHUTTING_DOWN_SECONDS, SKIPPED_SECONDS, LARGE_SECONDS = 300.0, 20.0, 1200.0
LARGE_TYPES = pytest.mark.parametrize("instance_type", ["p4d.24xlarge", "c5.metal"])


@pytest.fixture(autouse=True)
def timing(aws: EmulatedAws, client: Client) -> Iterator[None]:
    aws.set_timing(
        Timing(
            pending_seconds=PENDING_SECONDS,
            large_gpu_pending_seconds=LARGE_PENDING_SECONDS,
            shutting_down_seconds=SHUTTING_DOWN_SECONDS,
            large_gpu_shutting_down_seconds=LARGE_SECONDS,
            skip_os_shutdown_seconds=SKIPPED_SECONDS,
        )
    )
    yield
    aws.set_timing(Timing())
    aws.advance_clock(max(PENDING_SECONDS, LARGE_SECONDS))
    terminate_all(aws, client)


def state(client: Client, name: str) -> str:
    (reservation,) = client("ec2").describe_instances(InstanceIds=[name])["Reservations"]
    return str(reservation["Instances"][0]["State"]["Name"])


def test_instance_is_pending_before_it_runs(aws: EmulatedAws, client: Client, network: Network) -> None:
    (name,) = launch(client, network)
    assert state(client, name) == "pending"
    aws.advance_clock(PENDING_SECONDS)
    assert state(client, name) == "running"


def test_instance_uses_capacity_of_the_zone_until_it_is_terminated(
    aws: EmulatedAws, client: Client, network: Network
) -> None:
    aws.inject(shortage := Capacity(limit=1, instance_type="c5.metal"))
    (name,) = launch(client, network, InstanceType="c5.metal")
    aws.advance_clock(LARGE_PENDING_SECONDS)
    client("ec2").terminate_instances(InstanceIds=[name])
    with pytest.raises(ClientError, match="InsufficientInstanceCapacity"):
        launch(client, network, InstanceType="c5.metal")
    aws.advance_clock(LARGE_SECONDS)
    assert launch(client, network, InstanceType="c5.metal")
    aws.remove_faults([shortage])


def test_terminated_instance_shuts_down_first(aws: EmulatedAws, client: Client, network: Network) -> None:
    (name,) = launch(client, network)
    aws.advance_clock(PENDING_SECONDS)
    client("ec2").terminate_instances(InstanceIds=[name])
    assert state(client, name) == "shutting-down"
    aws.advance_clock(SHUTTING_DOWN_SECONDS)
    assert state(client, name) == "terminated"


@LARGE_TYPES
def test_large_gpu_and_metal_types_are_pending_longer(
    aws: EmulatedAws, client: Client, network: Network, instance_type: str
) -> None:
    (name,) = launch(client, network, InstanceType=instance_type)
    aws.advance_clock(PENDING_SECONDS)
    assert state(client, name) == "pending"
    aws.advance_clock(LARGE_PENDING_SECONDS - PENDING_SECONDS)
    assert state(client, name) == "running"


@LARGE_TYPES
def test_large_gpu_and_metal_types_shut_down_longer(
    aws: EmulatedAws, client: Client, network: Network, instance_type: str
) -> None:
    (name,) = launch(client, network, InstanceType=instance_type)
    aws.advance_clock(LARGE_PENDING_SECONDS)
    client("ec2").terminate_instances(InstanceIds=[name])
    aws.advance_clock(SHUTTING_DOWN_SECONDS)
    assert state(client, name) == "shutting-down"
    aws.advance_clock(LARGE_SECONDS - SHUTTING_DOWN_SECONDS)
    assert state(client, name) == "terminated"


def test_shutdown_of_the_operating_system_can_be_skipped(aws: EmulatedAws, client: Client, network: Network) -> None:
    skipped, graceful = launch(client, network, count=2)
    aws.advance_clock(PENDING_SECONDS)
    client("ec2").terminate_instances(InstanceIds=[skipped], SkipOsShutdown=True)
    client("ec2").terminate_instances(InstanceIds=[graceful])
    assert [state(client, name) for name in (skipped, graceful)] == ["shutting-down", "shutting-down"]
    aws.advance_clock(SKIPPED_SECONDS)
    assert [state(client, name) for name in (skipped, graceful)] == ["terminated", "shutting-down"]


def test_pending_instance_that_is_terminated_never_runs(aws: EmulatedAws, client: Client, network: Network) -> None:
    (name,) = launch(client, network)
    client("ec2").terminate_instances(InstanceIds=[name])
    aws.advance_clock(PENDING_SECONDS)
    assert state(client, name) == "shutting-down"
