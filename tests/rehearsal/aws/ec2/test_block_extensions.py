"""Capacity Blocks: their end, that of UltraServers, and extensions."""

from typing import Any

import pytest

from rehearsal.aws.faults import PaymentFailure
from rehearsal.aws.process import EmulatedAws
from rehearsal.aws.seed_models import AccountSeed, SeedReservation
from rehearsal.aws.timing import Timing
from tests.rehearsal.aws.conftest import Client, Network
from tests.rehearsal.aws.ec2.test_reservations import describe, in_block, launch, refused

HOUR, DAY = 3600.0, 86400.0
PAYMENT_SECONDS = 300.0
pytestmark = pytest.mark.usefixtures("clean_blocks")
_names = (f"cr-{number:017x}" for number in range(0xABC000, 0xABCFFF))


@pytest.fixture
def clean_blocks(aws: EmulatedAws, client: Client) -> Any:
    """Terminate the instances of each test."""
    yield
    aws.clear_faults()
    aws.set_timing(Timing())
    running = [record.id for record in aws.instances() if record.state == "running"]
    if running:
        client("ec2").terminate_instances(InstanceIds=running)


def block(aws: EmulatedAws, *, starts_in: float = -HOUR, ends_in: float = 24 * HOUR, **fields: Any) -> str:
    name, now = next(_names), aws.now()
    reservation = SeedReservation(
        id=name,
        instance_type="p4d.24xlarge",
        zone="us-east-1a",
        count=2,
        block=True,
        start=now + starts_in,
        end=now + ends_in,
        **fields,
    )
    aws.seed(AccountSeed(region="us-east-1", reservations=(reservation,)))
    return name


def offer(client: Client, name: str, hours: int = 24) -> dict[str, Any]:
    offerings = client("ec2").describe_capacity_block_extension_offerings(
        CapacityReservationId=name, CapacityBlockExtensionDurationHours=hours
    )["CapacityBlockExtensionOfferings"]
    return dict(offerings[0])


def purchase(client: Client, name: str, hours: int = 24) -> dict[str, Any]:
    extensions = client("ec2").purchase_capacity_block_extension(
        CapacityReservationId=name,
        CapacityBlockExtensionOfferingId=offer(client, name, hours)["CapacityBlockExtensionOfferingId"],
    )["CapacityBlockExtensions"]
    return dict(extensions[0])


def is_running(aws: EmulatedAws, instance: str) -> bool:
    return any(record.id == instance and record.state == "running" for record in aws.instances())


@pytest.mark.parametrize(("ultraserver", "minutes"), [(None, 30), ("u-p6e-gb200x36", 60)])
def test_instances_end_before_the_block(
    aws: EmulatedAws, client: Client, network: Network, ultraserver: str | None, minutes: int
) -> None:
    name = block(aws, ends_in=4 * HOUR, ultraserver_type=ultraserver)
    (instance,) = launch(client, network, **in_block(name))
    aws.advance_clock(4 * HOUR - minutes * 60 - 60)
    assert is_running(aws, instance)
    aws.advance_clock(61)
    assert not is_running(aws, instance)


def test_block_names_its_ultraserver_type_and_reservation(aws: EmulatedAws, client: Client) -> None:
    name = block(aws, ultraserver_type="u-p6e-gb200x36")
    block_id = describe(client, name)["CapacityBlockId"]
    (described,) = client("ec2").describe_capacity_blocks(CapacityBlockIds=[block_id])["CapacityBlocks"]
    assert described["UltraserverType"] == "u-p6e-gb200x36"
    assert described["CapacityReservationIds"] == [name]


def test_extension_moves_the_end_and_keeps_the_instances(aws: EmulatedAws, client: Client, network: Network) -> None:
    aws.set_timing(Timing(block_payment_seconds=PAYMENT_SECONDS))
    name = block(aws, ends_in=4 * HOUR)
    (instance,) = launch(client, network, **in_block(name))
    end = describe(client, name)["EndDate"]
    extension = purchase(client, name)
    assert extension["CapacityBlockExtensionStatus"] == "payment-pending"
    assert (extension["CapacityBlockExtensionEndDate"] - end).total_seconds() == DAY
    aws.advance_clock(5 * HOUR)
    assert is_running(aws, instance)
    assert (describe(client, name)["EndDate"] - end).total_seconds() == DAY


def test_extension_is_refused_while_another_is_pending(aws: EmulatedAws, client: Client) -> None:
    aws.set_timing(Timing(block_payment_seconds=PAYMENT_SECONDS))
    name = block(aws)
    purchase(client, name)
    assert refused(lambda: offer(client, name)) == "InvalidCapacityReservationState"
    aws.advance_clock(PAYMENT_SECONDS)
    assert offer(client, name)


@pytest.mark.parametrize("fails", [False, True])
def test_extension_is_paid_35_minutes_before_the_end_or_fails(aws: EmulatedAws, client: Client, fails: bool) -> None:
    aws.set_timing(Timing(block_payment_seconds=12 * HOUR))
    aws.inject(*([PaymentFailure()] if fails else []))
    name = block(aws, ends_in=2 * HOUR)
    end = describe(client, name)["EndDate"]
    purchase(client, name)
    aws.advance_clock(2 * HOUR - 36 * 60)
    assert describe(client, name)["EndDate"] == end
    aws.advance_clock(62)
    assert (describe(client, name)["EndDate"] - end).total_seconds() == (0 if fails else DAY)


@pytest.mark.parametrize("ends_in", [0.5 * HOUR, 57 * DAY])
def test_extension_is_refused_outside_its_period(aws: EmulatedAws, client: Client, ends_in: float) -> None:
    assert refused(lambda: offer(client, block(aws, ends_in=ends_in))) == "OperationNotPermitted"


@pytest.mark.parametrize("hours", [12, 15 * 24, 182 * 24])
def test_extension_of_another_length_is_refused(aws: EmulatedAws, client: Client, hours: int) -> None:
    assert refused(lambda: offer(client, block(aws), hours)) == "InvalidParameterValue"


def test_scheduled_block_can_be_extended(aws: EmulatedAws, client: Client) -> None:
    assert offer(client, block(aws, starts_in=HOUR, ends_in=25 * HOUR))


def test_ended_block_cannot_be_extended(aws: EmulatedAws, client: Client) -> None:
    name = block(aws, ends_in=2 * HOUR)
    aws.advance_clock(2 * HOUR + 1)
    assert refused(lambda: offer(client, name)) == "InvalidCapacityReservationState"


def test_unknown_offering_is_refused(aws: EmulatedAws, client: Client) -> None:
    def buy() -> None:
        client("ec2").purchase_capacity_block_extension(
            CapacityReservationId=block(aws), CapacityBlockExtensionOfferingId="cbe-1"
        )

    assert refused(buy) == "InvalidCapacityBlockExtensionOfferingId.NotFound"
