"""`trainyard blocks` lists and buys Capacity Blocks."""

import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from rehearsal.aws.process import EmulatedAws
from rehearsal.aws.seed_models import AccountSeed, SeedReservation
from rehearsal.aws.timing import Timing
from tests.conftest import REGION
from tests.problems import rejects
from trainyard.aws.clients import client
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
    assert command == "trainyard blocks --stack h200-cluster --hours 48 --after-days 2.5"
    assert format_offerings(offerings, command)[-1].endswith(f"{command} --buy {offerings[0].offering}")
    assert list_command("s", 24, extend=True) == "trainyard blocks --stack s --extend --hours 24"


@pytest.mark.parametrize(("hours", "fix"), [(30, "24 or 48"), (12, "24"), (15 * 24, "336 or 504"), (5000, "4368")])
def test_duration_that_aws_does_not_offer_names_the_nearest(hours: int, fix: str) -> None:
    with rejects("block_hours_not_offered", str(hours), "14 days", f"Use {fix}"):
        list_offerings(REGION, settings_of(), hours, time.time())
    with rejects("block_hours_not_offered", f"Use {fix}"):
        list_extensions(REGION, settings_of(), hours)


def test_offering_is_bought_after_its_price_is_confirmed() -> None:
    offerings, questions = list_offerings(REGION, settings_of(), 24, time.time()), list[str]()
    block = buy_offering(REGION, offerings, offerings[0].offering, questions.append)
    assert f"{offerings[0].usd:,.2f} USD" in questions[0]
    assert "not refundable" in questions[0]
    described = client("ec2", REGION).describe_capacity_reservations(CapacityReservationIds=[block.reservation])
    assert described["CapacityReservations"][0]["State"] == block.state == "payment-pending"
    text = format_purchase(block, "h200-cluster")
    assert f"{block.reservation} is payment-pending: set it as capacity.capacity_block.id" in text
    assert "also while the payment is pending" in text
    paid = format_purchase(block.model_copy(update={"state": "scheduled"}), "h200-cluster")
    assert "12 hours" not in paid


def test_refused_offering_is_not_bought(account: EmulatedAws) -> None:
    def refuse(question: str) -> None:
        raise KeyboardInterrupt(question)

    offerings, calls = list_offerings(REGION, settings_of(), 24, time.time()), len(account.journal())
    with pytest.raises(KeyboardInterrupt):
        buy_offering(REGION, offerings, offerings[0].offering, refuse)
    assert len(account.journal()) == calls


def test_unknown_offering_is_refused() -> None:
    with rejects("unknown_offering", "cbo-1"):
        buy_offering(REGION, list_offerings(REGION, settings_of(), 24, time.time()), "cbo-1", lambda question: None)


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
    purchased = buy_offering(REGION, offerings, offerings[0].offering, questions.append)
    assert f"{offerings[0].usd:,.2f} USD" in questions[0]
    assert (purchased.reservation, purchased.state) == (EXTENDED, "payment-pending")
    assert "pulumi up" in format_purchase(purchased, "h200-cluster")


def test_refused_extension_is_not_bought(account: EmulatedAws, extensible: StackSettings) -> None:
    def refuse(question: str) -> None:
        raise KeyboardInterrupt(question)

    account.advance_clock(5)  # an extension of another test is paid then
    offerings, calls = list_extensions(REGION, extensible, 24), len(account.journal())
    with pytest.raises(KeyboardInterrupt):
        buy_offering(REGION, offerings, offerings[0].offering, refuse)
    assert len(account.journal()) == calls


def test_stack_without_a_block_names_those_of_the_account(extensible: StackSettings) -> None:
    with rejects("no_capacity_block", "capacity.capacity_block", "Set the id of a Capacity Block", EXTENDED):
        list_extensions(REGION, settings_of("local"), 24)


def test_unknown_block_names_those_of_the_account(extensible: StackSettings) -> None:
    """The shipped stack file has the id of a block that does not exist."""
    with rejects("no_capacity_block", "does not exist in us-east-1", EXTENDED):
        list_extensions(REGION, settings_of(), 24)
