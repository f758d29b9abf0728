"""List and buy extensions of a stack's Capacity Block: `trainyard blocks --extend`."""

from collections.abc import Callable

from pydantic import Field

from trainyard.aws.capacity_blocks import ExtensionOffering, find_extensions, purchase_extension
from trainyard.base import StrictModel
from trainyard.config.settings import StackSettings
from trainyard.errors import InputError, Problem
from trainyard.operations.run_record import format_time

DEFAULT_HOURS = 24


class BlockExtension(StrictModel):
    """One offering in `trainyard blocks --extend --json`."""

    offering: str = Field(description="Id of the offering.")
    reservation: str = Field(description="Id of the Capacity Block's reservation, which stays.")
    instances: int = Field(gt=0, description="Instances.")
    start: float = Field(description="Unix time of the current end, seconds.")
    end: float = Field(description="Unix time of the new end, seconds.")
    usd: float = Field(ge=0, description="Price of the extension, USD, paid at once.")


class PurchasedExtension(StrictModel):
    """`trainyard blocks --extend --buy --json`."""

    offering: BlockExtension = Field(description="The purchased offering.")
    status: str = Field(description="Status of the payment: the end changes when it has succeeded.")


def list_extensions(region: str, settings: StackSettings, hours: int) -> list[BlockExtension]:
    """Return the offers to extend the stack's Capacity Block by `hours`.

    Raises InputError for a stack without a block, and ClientError for a block that AWS does not extend.
    """
    block = settings.capacity.capacity_block
    if block is None:
        reason, fix = "the stack has no Capacity Block", "Set its id, or list blocks without --extend"
        raise InputError([Problem("capacity.capacity_block", None, reason, fix, "no_capacity_block")])
    return [_result(block.id, offering) for offering in find_extensions(region, block.id, hours)]


def buy_extension(
    region: str, offerings: list[BlockExtension], name: str, confirm: Callable[[str], None]
) -> PurchasedExtension:
    """Purchase one of the offerings. `confirm` receives the price and raises to refuse it. Raises InputError."""
    offering = next((offering for offering in offerings if offering.offering == name), None)
    if offering is None:
        fix = "List the offerings again, with the same --hours"
        raise InputError([Problem("--buy", name, "AWS does not offer it now", fix, "unknown_offering")])
    confirm(
        f"Extend {offering.reservation} ({offering.instances} instances) from {format_time(offering.start)} to "
        f"{format_time(offering.end)} for {offering.usd:,.2f} USD, paid at once and not refundable?"
    )
    return PurchasedExtension(offering=offering, status=purchase_extension(region, offering.reservation, name))


def format_extensions(offerings: list[BlockExtension], stack: str, hours: int) -> list[str]:
    """Return one line per offering, and how to buy it."""
    if not offerings:
        return ["AWS offers no extension of this length: try another duration (--hours)"]
    rows = [
        f"{offering.offering}  {format_time(offering.start)} to {format_time(offering.end)}  "
        f"{offering.instances} instances  {offering.usd:,.2f} USD"
        for offering in offerings
    ]
    return [*rows, f"To buy it: trainyard blocks --stack {stack} --extend --hours {hours} --buy OFFERING"]


def format_purchase(purchased: PurchasedExtension, stack: str) -> str:
    """Return what follows from the purchase."""
    offering = purchased.offering
    return (
        f"bought the extension of {offering.reservation}, which is {purchased.status}. When AWS has received the "
        f"payment, the block ends at {format_time(offering.end)}. An active run then uses the later end, up to its "
        f"time limit. To increase the limit: change job.time_limit_minutes, then pulumi up -s {stack}"
    )


def _result(block: str, offering: ExtensionOffering) -> BlockExtension:
    return BlockExtension(
        offering=offering.id,
        reservation=block,
        instances=offering.instances,
        start=offering.start,
        end=offering.end,
        usd=offering.usd,
    )
