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
from trainyard.operations.block_extensions import buy_extension, format_extensions, format_purchase, list_extensions
from trainyard.operations.blocks import block_hours, buy_offering, format_offerings, list_offerings

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
    assert offerings[0].offering in format_offerings(offerings, "h200-cluster", 24, 3)[0]


def test_purchase_command_has_the_options_of_the_list() -> None:
    """Other options list other offerings: the offering would be unknown."""
    offerings = list_offerings(REGION, settings_of(), 48, time.time())
    assert format_offerings(offerings, "h200-cluster", 48, 0)[-1].endswith("--hours 48 --buy OFFERING")
    later = format_offerings(offerings, "h200-cluster", 48, 2.5)[-1]
    assert later.endswith("--stack h200-cluster --hours 48 --after-days 2.5 --buy OFFERING")


def test_offering_is_bought_after_its_price_is_confirmed() -> None:
    offerings, questions = list_offerings(REGION, settings_of(), 24, time.time()), list[str]()
    block = buy_offering(REGION, offerings, offerings[0].offering, questions.append)
    assert f"{offerings[0].usd:,.2f} USD" in questions[0]
    assert "not refundable" in questions[0]
    described = client("ec2", REGION).describe_capacity_reservations(CapacityReservationIds=[block.reservation])
    assert described["CapacityReservations"][0]["State"] == "payment-pending"


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
    lines = format_extensions([offering], "h200-cluster", 48)
    assert offering.offering in lines[0]
    assert "--extend --hours 48 --buy OFFERING" in lines[-1]


def test_extension_is_bought_after_its_price_is_confirmed(extensible: StackSettings) -> None:
    offerings, questions = list_extensions(REGION, extensible, 24), list[str]()
    purchased = buy_extension(REGION, offerings, offerings[0].offering, questions.append)
    assert f"{offerings[0].usd:,.2f} USD" in questions[0]
    assert purchased.status == "payment-pending"
    assert "pulumi up" in format_purchase(purchased, "h200-cluster")


def test_refused_extension_is_not_bought(account: EmulatedAws, extensible: StackSettings) -> None:
    def refuse(question: str) -> None:
        raise KeyboardInterrupt(question)

    account.advance_clock(5)  # an extension of another test is paid then
    offerings, calls = list_extensions(REGION, extensible, 24), len(account.journal())
    with pytest.raises(KeyboardInterrupt):
        buy_extension(REGION, offerings, offerings[0].offering, refuse)
    assert len(account.journal()) == calls


def test_stack_without_a_block_has_no_extension() -> None:
    with rejects("no_capacity_block", "capacity.capacity_block"):
        list_extensions(REGION, settings_of("local"), 24)
