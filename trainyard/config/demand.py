"""What a stack's settings ask of the account: vCPUs of its quotas, and USD an hour."""

from dataclasses import dataclass
from typing import Any

from trainyard.base import CONFIG_KEY
from trainyard.config.catalog import InstanceType
from trainyard.config.cost import Item, capped, hourly
from trainyard.config.prices import per_hour, prices
from trainyard.config.quotas import quota_of
from trainyard.config.settings import StackSettings
from trainyard.config.settings.capacity import GroupPlan
from trainyard.models.manifest import Market

_SCRATCH_THROUGHPUT = 200  # MB/s per TiB, which its price stands under
_OWN_KEYS = 1
_ALARMS_BESIDE_GROUPS = 1  # the head's


@dataclass(frozen=True, kw_only=True)
class QuotaNeed:
    """vCPUs that count against one quota. `key`, `value`: the setting that asks for most of them."""

    code: str
    name: str
    vcpus: int
    key: str
    value: Any


def quotas_needed(settings: StackSettings) -> list[QuotaNeed]:
    """One entry a quota. Instances of a Capacity Block count against none, and AWS names none for spot P6."""
    asked: list[tuple[InstanceType, Market, int, str, Any]] = [
        (settings.worker_type, group.market, settings.worker_type.vcpus * group.nodes, "nodes", settings.nodes)
        for group in settings.groups
    ]
    asked.append(
        (settings.head_type, "on-demand", settings.head_type.vcpus, "head_instance_type", settings.head_instance_type)
    )
    needs: dict[str, QuotaNeed] = {}
    for entry, market, vcpus, key, value in asked:
        quota = None if market == "capacity-block" else quota_of(entry, market)
        if quota is None:
            continue
        before = needs.get(quota.code)
        needs[quota.code] = QuotaNeed(
            code=quota.code,
            name=quota.name,
            vcpus=vcpus + (before.vcpus if before else 0),
            key=before.key if before else f"{CONFIG_KEY}.{key}",
            value=before.value if before else value,
        )
    return list(needs.values())


def bill(settings: StackSettings) -> list[Item]:
    """What is paid by the hour while the cluster stands, at list prices; not traffic, requests and S3 storage.

    A spot node stands with the most that it can cost; a Capacity Block has been paid for in advance.
    """
    listed = prices()
    items = [_workers(settings, group) for group in settings.groups]
    head = settings.head_type
    items.append(Item(what=f"head, {head.name}", count=1, usd_per_hour=head.on_demand_usd or 0.0))
    items.append(
        Item(
            what="root volumes, GiB of gp3",
            count=settings.root_volume_gib * (settings.nodes + 1),
            usd_per_hour=per_hour(listed.gp3_gb_month),
        )
    )
    if settings.fsx:
        throughputs = listed.fsx_lustre_gb_month[settings.fsx.deployment]
        price = throughputs[settings.fsx.throughput or _SCRATCH_THROUGHPUT]
        items.append(Item(what="FSx for Lustre, GiB", count=settings.fsx.capacity_gib, usd_per_hour=per_hour(price)))
    if settings.network.existing is None:
        endpoints = len(settings.endpoint_services)
        items.append(Item(what="interface endpoints", count=endpoints, usd_per_hour=listed.interface_endpoint_hour))
        if settings.network.nat:
            way_out = listed.nat_gateway_hour + listed.public_ipv4_hour
            items.append(Item(what="NAT gateway and its address", count=1, usd_per_hour=way_out))
    alarms = len(settings.groups) + _ALARMS_BESIDE_GROUPS
    items.append(Item(what="CloudWatch alarms", count=alarms, usd_per_hour=per_hour(listed.alarm_month)))
    items.append(Item(what="KMS key", count=_OWN_KEYS, usd_per_hour=per_hour(listed.kms_key_month)))
    return items


def hourly_usd(settings: StackSettings) -> float:
    """USD an hour while all nodes run."""
    return round(hourly(bill(settings)), 2)


def capped_usd(settings: StackSettings) -> float:
    """USD that a run can cost at most: all of it until the job's time limit, when the workers end in any case."""
    return round(capped(bill(settings), settings.job.time_limit_minutes), 2)


def _workers(settings: StackSettings, group: GroupPlan) -> Item:
    entry = settings.worker_type
    listed = entry.on_demand_usd or 0.0
    price, note = {
        "on-demand": (listed, "on-demand"),
        "spot": (group.max_price_usd or listed, "spot, at most"),
        "capacity-block": (0.0, "Capacity Block, paid in advance"),
    }[group.market]
    return Item(what=f"{group.name}, {entry.name} ({note})", count=group.nodes, usd_per_hour=price)
