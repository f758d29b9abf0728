"""`trainyard blocks` lists and buys Capacity Blocks."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from botocore.exceptions import ClientError, ReadTimeoutError

from rehearsal.aws.faults import Outage
from rehearsal.aws.process import EmulatedAws
from rehearsal.aws.seed_models import AccountSeed, SeedReservation
from rehearsal.aws.timing import Timing
from tests.conftest import REGION
from tests.problems import rejects
from trainyard.aws.capacity_blocks import UnknownPurchaseError
from trainyard.aws.clients import client
from trainyard.aws.reservations import find_reservations, read_reservation
from trainyard.aws.tagged_resources import tagged_resources
from trainyard.config import CONFIG_KEY
from trainyard.config.loader import load_settings
from trainyard.config.settings import StackSettings
from trainyard.operations.blocks import (
    block_hours,
    buy_offering,
    format_offerings,
    format_purchase,
    list_command,
    list_extensions,
    list_offerings,
)
from trainyard.times import format_time

STACK = "h200-cluster"
ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.usefixtures("account")


@pytest.fixture(scope="module")
def account(own_account: EmulatedAws) -> EmulatedAws:
    """An account of this file, because a test advances its clock. Payments take two seconds."""
    own_account.set_timing(Timing(block_payment_seconds=2))
    return own_account


def settings_of(stack: str = "h200-cluster", **changes: Any) -> StackSettings:
    file = ROOT / f"stacks/Pulumi.{stack}.yaml"
    raw = yaml.safe_load(file.read_text())["config"][CONFIG_KEY]
    raw["job"].update(changes)
    return load_settings(raw, ROOT, file.name)


@pytest.mark.parametrize(
    ("minutes", "hours"), [(60, 24), (22 * 60, 24), (24 * 60, 48), (13 * 1440, 14 * 24), (15 * 1440, 21 * 24)]
)
def test_duration_covers_the_time_limit(minutes: float, hours: int) -> None:
    assert block_hours(settings_of(time_limit_minutes=minutes)) == hours


def test_offerings_are_for_all_nodes_with_start_and_price() -> None:
    earliest = time.time() + 3 * 86400
    offerings = list_offerings(REGION, settings_of(), 24, earliest)
    assert offerings
    assert all(offering.instances == 4 and offering.usd > 0 and offering.start >= earliest for offering in offerings)
    assert offerings[0].offering in format_offerings(offerings, "trainyard blocks")[0]


def test_purchase_command_has_the_options_of_the_list_and_an_offering() -> None:
    """Other options list other offerings: the offering would be unknown."""
    offerings = list_offerings(REGION, settings_of(), 48, time.time())
    command = list_command("h200-cluster", 48, after_days=2.5)
    assert command == "trainyard blocks -s h200-cluster --hours 48 --after-days 2.5"
    assert format_offerings(offerings, command)[-1].endswith(f"{command} --buy {offerings[0].offering}")
    assert list_command("s", 24, extend=True) == "trainyard blocks -s s --extend --hours 24"


@pytest.mark.parametrize(("hours", "fix"), [(30, "24 or 48"), (12, "24"), (15 * 24, "336 or 504"), (5000, "4368")])
def test_duration_that_aws_does_not_offer_names_the_nearest(hours: int, fix: str) -> None:
    with rejects("block_hours_not_offered", str(hours), "14 days", f"Use {fix}"):
        list_offerings(REGION, settings_of(), hours, time.time())
    with rejects("block_hours_not_offered", f"Use {fix}"):
        list_extensions(REGION, settings_of(), hours)


def test_offering_is_bought_after_its_price_is_confirmed() -> None:
    offerings, questions = list_offerings(REGION, settings_of(), 24, time.time()), list[str]()
    block = buy_offering(REGION, STACK, offerings, offerings[0].offering, questions.append)
    assert f"{offerings[0].usd:,.2f} USD" in questions[0]
    assert "not refundable" in questions[0]
    described = client("ec2", REGION).describe_capacity_reservations(CapacityReservationIds=[block.reservation])
    assert described["CapacityReservations"][0]["State"] == block.state == "payment-pending"
    text = format_purchase(block, "h200-cluster")
    assert text.startswith(f"{block.reservation} is payment-pending: AWS releases the Capacity Block")
    assert "Set it as capacity.capacity_block.id" in text
    assert "also while the payment is pending" in text
    paid = format_purchase(block.model_copy(update={"state": "scheduled"}), "h200-cluster")
    assert "12 hours" not in paid


def test_refused_offering_is_not_bought(account: EmulatedAws) -> None:
    def refuse(question: str) -> None:
        raise KeyboardInterrupt(question)

    offerings, calls = list_offerings(REGION, settings_of(), 24, time.time()), len(account.journal())
    with pytest.raises(KeyboardInterrupt):
        buy_offering(REGION, STACK, offerings, offerings[0].offering, refuse)
    assert len(account.journal()) == calls


def test_unknown_offering_is_refused() -> None:
    with rejects("unknown_offering", "cbo-1"):
        buy_offering(
            REGION, STACK, list_offerings(REGION, settings_of(), 24, time.time()), "cbo-1", lambda question: None
        )


def test_type_that_is_not_sold_in_blocks_is_refused() -> None:
    with rejects("no_capacity_blocks", "c7i.xlarge"):
        list_offerings(REGION, settings_of("local"), 24, time.time())


EXTENDED = "cr-0000000000000b10c"


@pytest.fixture
def extensible(account: EmulatedAws) -> StackSettings:
    """Settings of a stack whose Capacity Block ends in five hours."""
    now = account.now()
    block = SeedReservation(
        id=EXTENDED, instance_type="p5en.48xlarge", zone="us-east-1a", count=4, block=True, start=now, end=now + 18000
    )
    account.seed(AccountSeed(region=REGION, reservations=(block,)))
    settings = settings_of()
    assert settings.capacity.capacity_block is not None
    named = settings.capacity.capacity_block.model_copy(update={"id": EXTENDED})
    return settings.model_copy(update={"capacity": settings.capacity.model_copy(update={"capacity_block": named})})


def test_extensions_are_listed_with_end_and_price(extensible: StackSettings) -> None:
    (offering,) = list_extensions(REGION, extensible, 48)
    assert offering.end - offering.start == 48 * 3600
    assert offering.usd > 0
    assert offering.extends == EXTENDED
    assert offering.offering in format_offerings([offering], "trainyard blocks")[0]


def test_extension_is_bought_after_its_price_is_confirmed(extensible: StackSettings) -> None:
    offerings, questions = list_extensions(REGION, extensible, 24), list[str]()
    purchased = buy_offering(REGION, STACK, offerings, offerings[0].offering, questions.append)
    assert f"{offerings[0].usd:,.2f} USD" in questions[0]
    assert (purchased.reservation, purchased.state) == (EXTENDED, "payment-pending")
    assert "trainyard up -s h200-cluster" in format_purchase(purchased, "h200-cluster")


def test_refused_extension_is_not_bought(account: EmulatedAws, extensible: StackSettings) -> None:
    def refuse(question: str) -> None:
        raise KeyboardInterrupt(question)

    account.advance_clock(5)  # an extension of another test is paid then
    offerings, calls = list_extensions(REGION, extensible, 24), len(account.journal())
    with pytest.raises(KeyboardInterrupt):
        buy_offering(REGION, STACK, offerings, offerings[0].offering, refuse)
    assert len(account.journal()) == calls


def test_stack_without_a_block_names_those_of_the_account(extensible: StackSettings) -> None:
    with rejects("no_capacity_block", "capacity.capacity_block", "Set the id of a Capacity Block", EXTENDED):
        list_extensions(REGION, settings_of("local"), 24)


def test_unknown_block_names_those_of_the_account(extensible: StackSettings) -> None:
    """The shipped stack file has the id of a block that does not exist."""
    with rejects("no_capacity_block", "does not exist in us-east-1", EXTENDED):
        list_extensions(REGION, settings_of(), 24)


@pytest.fixture
def lost_responses() -> Iterator[None]:
    """Purchases are executed, and their responses are lost."""
    events = client("ec2", REGION, max_attempts=1).meta.events

    def lose_response(**_: Any) -> None:
        raise ReadTimeoutError(endpoint_url="https://ec2.us-east-1.amazonaws.com/")

    names = ["after-call.ec2.PurchaseCapacityBlock", "after-call.ec2.PurchaseCapacityBlockExtension"]
    for name in names:
        events.register_first(name, lose_response)
    yield
    for name in names:
        events.unregister(name, lose_response)


def purchases(account: EmulatedAws) -> int:
    return sum(entry.operation.startswith("Purchase") for entry in account.journal())


@pytest.mark.usefixtures("lost_responses")
def test_purchase_without_response_lists_the_blocks_and_is_not_repeated(account: EmulatedAws) -> None:
    offerings, before = list_offerings(REGION, settings_of(), 24, time.time()), purchases(account)
    with pytest.raises(UnknownPurchaseError, match="it is not known whether AWS sold the Capacity Block") as raised:
        buy_offering(REGION, "lost", offerings, offerings[0].offering, lambda question: None)
    assert purchases(account) == before + 1
    tagged = [{"Name": "tag:trainyard:stack", "Values": ["lost"]}]
    (sold,) = client("ec2", REGION).describe_capacity_reservations(Filters=tagged)["CapacityReservations"]
    text = str(raised.value)
    assert f"now: {sold['CapacityReservationId']}, 4 x p5en.48xlarge" in text  # the last purchase is first
    assert f"created at {format_time(sold['CreateDate'].timestamp())}" in text
    assert "aws ec2 describe-capacity-reservations --region us-east-1 --filters Name=tag:trainyard:stack" in text


def test_purchase_that_fails_with_a_server_error_may_have_been_sold(account: EmulatedAws) -> None:
    offerings, before = list_offerings(REGION, settings_of(), 24, time.time()), purchases(account)
    account.inject(Outage(operation="ec2:PurchaseCapacityBlock", times=1))
    with pytest.raises(UnknownPurchaseError, match="InternalError"):
        buy_offering(REGION, STACK, offerings, offerings[0].offering, lambda question: None)
    assert purchases(account) == before + 1


@pytest.mark.usefixtures("lost_responses")
def test_extension_without_response_lists_the_purchased_extensions(
    account: EmulatedAws, extensible: StackSettings
) -> None:
    account.advance_clock(5)  # an extension of another test is paid then
    offerings = list_extensions(REGION, extensible, 24)
    with pytest.raises(UnknownPurchaseError, match=f"sold the extension of {EXTENDED}") as raised:
        buy_offering(REGION, STACK, offerings, offerings[0].offering, lambda question: None)
    assert f"now: {offerings[0].offering} until {format_time(offerings[0].end)}" in str(raised.value)
    assert f"describe-capacity-block-extension-history --region us-east-1 --capacity-reservation-ids {EXTENDED}" in str(
        raised.value
    )


def test_refused_purchase_is_no_unknown_purchase() -> None:
    offerings = list_offerings(REGION, settings_of(), 24, time.time())
    buy_offering(REGION, STACK, offerings, offerings[0].offering, lambda question: None)
    with pytest.raises(ClientError, match="InvalidCapacityBlockOfferingId"):  # bought by another in the meantime
        buy_offering(REGION, STACK, offerings, offerings[0].offering, lambda question: None)


def test_block_of_a_stack_is_neither_cancelled_nor_listed_as_remaining(account: EmulatedAws) -> None:
    """It is paid in advance: EC2 does not cancel it, and its tag names the stack that it was bought for."""
    offerings = list_offerings(REGION, settings_of(), 24, time.time())
    block = buy_offering(REGION, "kept", offerings, offerings[0].offering, lambda question: None)
    account.advance_clock(offerings[0].start - account.now() + 60)
    assert read_reservation(REGION, block.reservation).state == "active"
    assert find_reservations(REGION, {"trainyard:stack": "kept"}) == []
    assert tagged_resources(REGION, "trainyard:stack", "kept") == []
