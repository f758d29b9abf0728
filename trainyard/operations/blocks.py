"""List and buy Capacity Blocks for a stack: `trainyard blocks`."""

from collections.abc import Callable

from pydantic import Field

from trainyard.aws.block_end import usable_end
from trainyard.aws.capacity_blocks import Offering, find_offerings, purchase_offering
from trainyard.base import StrictModel
from trainyard.config.settings import StackSettings
from trainyard.errors import InputError, Problem
from trainyard.operations.run_record import format_time

_HOUR_SECONDS, _DAY_HOURS = 3600, 24


class BlockOffering(StrictModel):
    """One offering in `trainyard blocks --json`."""

    offering: str = Field(description="Id of the offering.")
    zone: str = Field(description="Availability Zone.")
    instances: int = Field(gt=0, description="Instances.")
    start: float = Field(description="Unix time of the start, seconds.")
    end: float = Field(description="Unix time of the end, seconds; AWS terminates the instances before it.")
    usd: float = Field(ge=0, description="Price of the Capacity Block, USD, paid at once.")


class PurchasedBlock(StrictModel):
    """`trainyard blocks --buy --json`."""

    reservation: str = Field(description="Id of the reservation: capacity.capacity_block.id of the stack file.")
    offering: BlockOffering = Field(description="The purchased offering.")


def block_hours(settings: StackSettings) -> int:
    """Return the shortest duration, in hours, of a Capacity Block that lasts for the job's time limit.

    Capacity Blocks have whole days up to 14 days, then whole weeks (EC2 user guide, "Capacity Blocks for ML"). A run
    ends before the block, see trainyard.aws.block_end.
    """
    unused_minutes = -usable_end(0.0, settings.instance_type) / 60
    hours = (settings.job.time_limit_minutes + settings.launch.startup_timeout_minutes + unused_minutes) / 60
    days = max(1, -(-int(hours * 60) // (_DAY_HOURS * 60)))
    return (days if days <= 14 else -(-days // 7) * 7) * _DAY_HOURS


def list_offerings(region: str, settings: StackSettings, hours: int, earliest: float) -> list[BlockOffering]:
    """Return the offerings for all nodes of the stack, earliest first. `earliest`: Unix time.

    Raises InputError for an instance type that is not sold in Capacity Blocks.
    """
    if settings.worker_type.capacity_block_usd is None:
        reason, fix = "is not sold in Capacity Blocks", "Choose an instance type such as p5en.48xlarge"
        raise InputError([Problem("instance_type", settings.instance_type, reason, fix, "no_capacity_blocks")])
    offerings = find_offerings(region, settings.instance_type, settings.nodes, hours, earliest)
    return [_result(offering) for offering in offerings]


def buy_offering(
    region: str, offerings: list[BlockOffering], name: str, confirm: Callable[[str], None]
) -> PurchasedBlock:
    """Purchase one of the offerings. `confirm` receives the price and raises to refuse it. Raises InputError."""
    matches = [offering for offering in offerings if offering.offering == name]
    if not matches:
        fix = "List the offerings again without --buy: they change as others buy"
        raise InputError([Problem("--buy", name, "AWS does not offer it now", fix, "unknown_offering")])
    (offering,) = matches
    confirm(
        f"Buy {offering.instances} instances in {offering.zone} from {format_time(offering.start)} to "
        f"{format_time(offering.end)} for {offering.usd:,.2f} USD, paid at once and not refundable?"
    )
    return PurchasedBlock(reservation=purchase_offering(region, name), offering=offering)


def format_offerings(offerings: list[BlockOffering], stack: str, hours: int, after_days: float) -> list[str]:
    """Return one line per offering, and how to buy it: with the options of the list, which select the offerings."""
    if not offerings:
        return ["AWS offers no Capacity Block for all nodes: try another duration (--hours), start or region"]
    rows = [
        f"{offering.offering}  {offering.zone}  {format_time(offering.start)} to {format_time(offering.end)}  "
        f"{offering.instances} instances  {offering.usd:,.2f} USD"
        for offering in offerings
    ]
    options = f"--hours {hours}" + (f" --after-days {after_days:g}" if after_days else "")
    return [*rows, f"To buy a Capacity Block: trainyard blocks --stack {stack} {options} --buy OFFERING"]


def _result(offering: Offering) -> BlockOffering:
    return BlockOffering(
        offering=offering.id,
        zone=offering.zone,
        instances=offering.instances,
        start=offering.start,
        end=offering.end,
        usd=offering.usd,
    )
