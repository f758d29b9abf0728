"""Estimate the cost of a stack at list prices."""

from pydantic import Field

from trainyard.base import StrictModel
from trainyard.config.prices import monthly_to_hourly, prices
from trainyard.config.settings import StackSettings
from trainyard.config.settings.capacity import GroupPlan
from trainyard.config.settings.stack import GP3_THROUGHPUT

_SCRATCH_THROUGHPUT = 200  # MB/s per TiB, the price class of SCRATCH_2 in prices.json
_HEAD_ALARMS = 1


class CostItem(StrictModel):
    """One line of a cost estimate."""

    name: str = Field(description="Billed resource.")
    count: float = Field(ge=0, description="Quantity.")
    unit_usd_per_hour: float = Field(ge=0, description="Price of one unit, USD an hour.")

    @property
    def usd_per_hour(self) -> float:
        """Price of the whole quantity, USD an hour."""
        return self.count * self.unit_usd_per_hour


def cost_items(settings: StackSettings) -> list[CostItem]:
    """Return the hourly cost of a running cluster, without data transfer, requests and S3 storage.

    A spot node counts at its maximum price. A Capacity Block is paid in advance and counts as 0.
    """
    workers = [_workers(settings, group) for group in settings.groups]
    workers.append(_root_volumes("workers", settings, settings.instances))
    if extra := settings.root_volume_throughput - GP3_THROUGHPUT:
        workers.append(
            CostItem(
                name="throughput of root volumes of workers, MiB/s of gp3",
                count=extra * settings.instances,
                unit_usd_per_hour=monthly_to_hourly(prices().gp3_throughput_month),
            )
        )
    return [*workers, *_base_items(settings)]


def _root_volumes(name: str, settings: StackSettings, count: int) -> CostItem:
    price = monthly_to_hourly(prices().gp3_gb_month)
    return CostItem(
        name=f"root volumes of {name}, GiB of gp3", count=settings.root_volume_gib * count, unit_usd_per_hour=price
    )


def _base_items(settings: StackSettings) -> list[CostItem]:
    """Return the hourly cost of the cluster without workers."""
    listed, head = prices(), settings.head_type
    items = [CostItem(name=f"head, {head.name}", count=1, unit_usd_per_hour=head.on_demand_usd or 0.0)]
    items.append(_root_volumes("the head", settings, 1))
    if settings.fsx:
        monthly = listed.fsx_lustre_gb_month[settings.fsx.deployment_type]
        price = monthly_to_hourly(monthly[settings.fsx.throughput or _SCRATCH_THROUGHPUT])
        count = settings.fsx.storage_capacity_gib
        items.append(CostItem(name="FSx for Lustre, GiB", count=count, unit_usd_per_hour=price))
    if settings.network.existing is None:
        endpoints = len(settings.endpoint_services)
        price = listed.interface_endpoint_hour
        items.append(CostItem(name="interface endpoints", count=endpoints, unit_usd_per_hour=price))
        if settings.network.nat_gateway:
            price = listed.nat_gateway_hour + listed.public_ipv4_hour
            items.append(CostItem(name="NAT gateway and its address", count=1, unit_usd_per_hour=price))
    alarms = len(settings.groups) + _HEAD_ALARMS
    alarm_price = monthly_to_hourly(listed.alarm_month)
    items.append(CostItem(name="CloudWatch alarms", count=alarms, unit_usd_per_hour=alarm_price))
    items.append(CostItem(name="KMS key", count=1, unit_usd_per_hour=monthly_to_hourly(listed.kms_key_month)))
    return items


def base_usd_per_hour(settings: StackSettings) -> float:
    """Return the USD an hour of the cluster without workers: head, network and file system, until `pulumi destroy`."""
    return round(sum(item.usd_per_hour for item in _base_items(settings)), 2)


def node_usd_per_hour(settings: StackSettings, group: GroupPlan) -> float:
    """Return the maximum USD an hour of one node of the group, without its volume."""
    return _workers(settings, group).unit_usd_per_hour


def usd_per_hour(settings: StackSettings) -> float:
    """Return the USD an hour while all nodes run."""
    return round(sum(item.usd_per_hour for item in cost_items(settings)), 2)


def max_run_usd(settings: StackSettings) -> float:
    """Return the maximum cost of a run, USD: the whole cluster until the job's time limit."""
    hours = settings.job.time_limit_minutes / 60
    return round(sum(item.usd_per_hour for item in cost_items(settings)) * hours, 2)


def _workers(settings: StackSettings, group: GroupPlan) -> CostItem:
    first, *others = settings.types_of(group)
    listed = max(entry.on_demand_usd or 0.0 for entry in (first, *others))
    price, note = {
        "on-demand": (listed, "on-demand"),
        "spot": (group.max_price_usd or listed, "spot, maximum"),
        "capacity-block": (0.0, "Capacity Block, paid in advance"),
        "interruptible-capacity-reservation": (listed, "interruptible reservation"),
    }[group.market]
    types = f"{first.name} or a similar type" if others else first.name
    return CostItem(name=f"{group.name}, {types} ({note})", count=group.nodes, unit_usd_per_hour=price)
