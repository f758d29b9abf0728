"""List and buy Capacity Blocks for a stack, and extensions of its block: `trainyard blocks`."""

import shlex
from collections.abc import Callable
from pathlib import Path

from botocore.exceptions import BotoCoreError, ClientError
from pydantic import Field

from trainyard.aws import capacity_blocks, tags
from trainyard.aws.block_end import usable_end
from trainyard.aws.block_payments import PAYMENT_HOURS, describe_pending_payment
from trainyard.aws.capacity_blocks import Offering, UnknownPurchaseError
from trainyard.base import StrictModel
from trainyard.config.settings import StackSettings
from trainyard.errors import InputError, Problem
from trainyard.times import format_time

# "1-day increments up to 14 days, and 7-day increments up to 182 days" (API reference, DescribeCapacityBlockOfferings;
# EC2 user guide, "Extend Capacity Blocks").
BLOCK_HOURS: tuple[int, ...] = (*range(24, 14 * 24 + 1, 24), *range(21 * 24, 182 * 24 + 1, 7 * 24))
EXTENSION_HOURS = 24  # default


class BlockOffering(StrictModel):
    """One offering in `trainyard blocks --json`."""

    offering: str = Field(description="Id of the offering.")
    extends: str | None = Field(None, description="Id of the reservation that it extends; null: a Capacity Block.")
    zone: str = Field(description="Availability Zone.")
    instances: int = Field(gt=0, description="Instances.")
    start: float = Field(description="Unix time of the start, seconds; of an extension: the current end.")
    end: float = Field(description="Unix time of the end, seconds; AWS terminates the instances before it.")
    usd: float = Field(ge=0, description="Price of the offering, USD, paid at once.")


class Purchase(StrictModel):
    """`trainyard blocks --buy --json`."""

    reservation: str = Field(description="Id of the reservation: capacity.capacity_block.id of the stack file.")
    state: str = Field(description="State of the reservation, or of the extension's payment, after the purchase.")
    offering: BlockOffering = Field(description="The purchased offering.")


def block_hours(settings: StackSettings) -> int:
    """Return the shortest duration, in hours, of a Capacity Block that lasts for the job's time limit.

    EC2 terminates the instances before the end of the block, and the run ends earlier (trainyard.aws.block_end).
    """
    unused_minutes = -usable_end(0.0, settings.instance_type) / 60
    minutes = settings.job.time_limit_minutes + settings.launch.startup_timeout_minutes + unused_minutes
    return next((hours for hours in BLOCK_HOURS if hours * 60 >= int(minutes)), BLOCK_HOURS[-1])


def list_offerings(region: str, settings: StackSettings, hours: int, earliest: float) -> list[BlockOffering]:
    """Return the offerings for all nodes of the stack, earliest first. `earliest`: Unix time.

    Raises InputError for an instance type that is not sold in Capacity Blocks, and for a duration that AWS does not
    offer.
    """
    if settings.worker_type.capacity_block_usd is None:
        reason, fix = "is not sold in Capacity Blocks", "Choose an instance type such as p5en.48xlarge"
        raise InputError([Problem("instance_type", settings.instance_type, reason, fix, "no_capacity_blocks")])
    _require_offered(hours)
    offerings = capacity_blocks.find_offerings(region, settings.instance_type, settings.instances, hours, earliest)
    return [_result(offering) for offering in offerings]


def list_extensions(region: str, settings: StackSettings, hours: int) -> list[BlockOffering]:
    """Return the offerings that extend the stack's Capacity Block by `hours`.

    Raises InputError for a stack without an existing block and for a duration that AWS does not offer, and ClientError
    for a block that AWS does not extend.
    """
    _require_offered(hours)
    block = settings.capacity.capacity_block
    if block is None:
        raise _no_block(region, "capacity.capacity_block", None, "the stack has no Capacity Block")
    try:
        offerings = capacity_blocks.find_extensions(region, block.id, hours)
    except ClientError as error:
        if error.response["Error"]["Code"] != "InvalidCapacityReservationId.NotFound":
            raise
        raise _no_block(region, "capacity.capacity_block.id", block.id, f"does not exist in {region}") from None
    return [_result(offering, extends=block.id) for offering in offerings]


def _require_offered(hours: int) -> None:
    if hours not in BLOCK_HOURS:
        shorter = [str(each) for each in BLOCK_HOURS if each < hours][-1:]
        longer = [str(each) for each in BLOCK_HOURS if each > hours][:1]
        reason = "AWS sells whole days of 24 hours up to 14 days, then whole weeks of 168 hours up to 26 weeks"
        fix = f"Use {' or '.join(shorter + longer)}"
        raise InputError([Problem("--hours", hours, reason, fix, "block_hours_not_offered")])


def _no_block(region: str, key: str, value: str | None, reason: str) -> InputError:
    blocks = capacity_blocks.find_blocks(region)
    names = ", ".join(sorted(block.id for block in blocks if block.state in ("active", "scheduled")))
    fix = f"Set the id of a Capacity Block of the account: {names}" if names else "Buy one: omit --extend"
    return InputError([Problem(key, value, reason, fix, "no_capacity_block")])


def buy_offering(
    region: str, stack: str, offerings: list[BlockOffering], name: str, confirm: Callable[[str], None]
) -> Purchase:
    """Purchase one of the offerings. `stack`: its `stack_tag`. `confirm` receives the price and raises to refuse it.

    A purchased block has the tag of the stack. Raises InputError for an offering that AWS does not offer any more, and
    UnknownPurchaseError, whose message lists the purchases until now, when AWS does not respond.
    """
    offering = next((offering for offering in offerings if offering.offering == name), None)
    if offering is None:
        fix = "List the offerings again, with the same options except --buy: they change as others buy"
        raise InputError([Problem("--buy", name, "AWS does not offer it now", fix, "unknown_offering")])
    action = f"Extend {offering.extends}" if offering.extends else "Buy a Capacity Block"
    confirm(
        f"{action}, {offering.instances} instances in {offering.zone}, from {format_time(offering.start)} to "
        f"{format_time(offering.end)} for {offering.usd:,.2f} USD, paid at once and not refundable?"
    )
    try:
        if offering.extends:
            state = capacity_blocks.purchase_extension(region, offering.extends, name)
            return Purchase(reservation=offering.extends, state=state, offering=offering)
        reservation, state = capacity_blocks.purchase_offering(region, name, stack)
        return Purchase(reservation=reservation, state=state, offering=offering)
    except UnknownPurchaseError as error:
        raise UnknownPurchaseError(_describe_unknown_purchase(region, stack, offering, error)) from error


def _describe_unknown_purchase(region: str, stack: str, offering: BlockOffering, error: Exception) -> str:
    """Return what was purchased until now, as far as it can be read, and the command that reads it again."""
    if offering.extends:
        subject, filters = f"extension of {offering.extends}", f"--capacity-reservation-ids {offering.extends}"
        command = f"aws ec2 describe-capacity-block-extension-history --region {region} {filters}"
    else:
        subject, filters = "Capacity Block", f"--filters Name=tag:{tags.STACK},Values={stack}"
        command = f"aws ec2 describe-capacity-reservations --region {region} {filters}"
    try:
        existing = "; ".join(_purchases(region, offering.extends)) or "none"
    except (BotoCoreError, ClientError) as reading_error:
        existing = f"could not be read ({reading_error})"
    listed = "Its extensions now" if offering.extends else f"Capacity Blocks in {region} now"
    return (
        f"it is not known whether AWS sold the {subject} (offering {offering.offering}, {offering.usd:,.2f} USD): "
        f"{error}. {listed}: {existing}. A purchase may appear later: read it again before you buy again: {command}"
    )


def _purchases(region: str, extended: str | None) -> list[str]:
    """Return a text for each Capacity Block, or for each extension of the `extended` one, last purchase first."""
    if extended:
        return [
            f"{each.offering} until {format_time(each.end)}, {each.status}, purchased at {format_time(each.purchased)}"
            for each in capacity_blocks.find_purchased_extensions(region, extended)
        ]
    return [
        f"{each.id}, {each.instances} x {each.instance_type} in {each.zone}, {each.state}, created at "
        f"{format_time(each.created)}"
        for each in capacity_blocks.find_blocks(region)
    ]


def list_command(
    stack: str, hours: int, *, after_days: float = 0, extend: bool = False, file: Path | None = None
) -> str:
    """Return the command with the options that select the same offerings again."""
    options = (["--file", shlex.quote(str(file))] if file else []) + (["--extend"] if extend else [])
    options += ["--hours", str(hours)] + (["--after-days", f"{after_days:g}"] if after_days else [])
    return f"trainyard blocks -s {stack} {' '.join(options)}"


def format_offerings(offerings: list[BlockOffering], command: str) -> list[str]:
    """Return one line per offering, and how to buy the first. `command`: that of the list."""
    if not offerings:
        return ["AWS offers nothing for all nodes: try another duration (--hours), start (--after-days) or region"]
    rows = [
        f"{offering.offering}  {offering.zone}  {format_time(offering.start)} to {format_time(offering.end)}  "
        f"{offering.instances} instances  {offering.usd:,.2f} USD"
        for offering in offerings
    ]
    return [*rows, f"To buy the first: {command} --buy {offerings[0].offering}"]


def format_purchase(purchase: Purchase, stack: str) -> str:
    """Return the state of the purchase, and what follows from it."""
    name, end = purchase.reservation, format_time(purchase.offering.end)
    if purchase.offering.extends:
        return (
            f"the extension of {name} is {purchase.state}. When AWS has received the payment, for which it has "
            f"{PAYMENT_HOURS} hours, the block ends at {end}. An active run then uses the later end, up to its time "
            f"limit. To increase the limit: change job.time_limit_minutes, then trainyard up -s {stack}"
        )
    action = f"Set it as capacity.capacity_block.id in the file of stack {stack}, then trainyard up -s {stack}"
    if purchase.state != "payment-pending":
        return f"{name} is {purchase.state}. {action}"
    return (
        f"{describe_pending_payment(name)}. {action}, also while the payment is pending. To read the state: aws ec2 "
        f"describe-capacity-reservations --capacity-reservation-ids {name}"
    )


def _result(offering: Offering, extends: str | None = None) -> BlockOffering:
    return BlockOffering(
        offering=offering.id,
        extends=extends,
        zone=offering.zone,
        instances=offering.instances,
        start=offering.start,
        end=offering.end,
        usd=offering.usd,
    )
