"""Service quotas that a stack needs: vCPUs of running instances by class of instance type, and network interfaces.

Names and codes: EC2 developer guide, "Amazon EC2 instance type quotas"; VPC user guide, "Amazon VPC quotas". Capacity
Blocks count against no quota on vCPUs.
"""

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from trainyard.base import StrictModel
from trainyard.config import CONFIG_KEY
from trainyard.config.catalog import InstanceType
from trainyard.config.settings import StackSettings
from trainyard.config.shared_settings import Market

QuotaMarket = Literal["on-demand", "spot"]


class Quota(StrictModel):
    """A quota of an account and region."""

    code: str = Field(pattern="^L-[0-9A-F]{8}$", description="Quota code.")
    name: str = Field(description="Quota name.")


_INTERFACES = Quota(code="L-DF5E4CA3", name="Network interfaces per Region")
# Network interfaces of the head, the NAT gateway, the VPC endpoints and the file system; an upper estimate.
OTHER_INTERFACES = 20
_P = Quota(code="L-417A185B", name="Running On-Demand P instances")
_G = Quota(code="L-DB2E81BA", name="Running On-Demand G and VT instances")
_STANDARD = Quota(code="L-1216C47A", name="Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances")
_SPOT_P4 = Quota(code="L-7212CCBC", name="All P4, P3 and P2 Spot Instance Requests")
_SPOT_P5 = Quota(code="L-C4BD4855", name="All P5 Spot Instance Requests")
_SPOT_G = Quota(code="L-3819A6DF", name="All G and VT Spot Instance Requests")
_SPOT_STANDARD = Quota(code="L-34B43A08", name="All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests")

# Prefix of the instance type -> its quotas. AWS publishes no quota of Spot requests for P6.
_QUOTAS_BY_PREFIX: dict[str, dict[QuotaMarket, Quota | None]] = {
    "p3": {"on-demand": _P, "spot": _SPOT_P4},
    "p4": {"on-demand": _P, "spot": _SPOT_P4},
    "p5": {"on-demand": _P, "spot": _SPOT_P5},
    "p6": {"on-demand": _P, "spot": None},
    "g": {"on-demand": _G, "spot": _SPOT_G},
    "c": {"on-demand": _STANDARD, "spot": _SPOT_STANDARD},
    "m": {"on-demand": _STANDARD, "spot": _SPOT_STANDARD},
    "t": {"on-demand": _STANDARD, "spot": _SPOT_STANDARD},
}


def quota_of(instance_type: InstanceType, market: QuotaMarket) -> Quota | None:
    """Return the quota that the default vCPUs of the instance type count against, or None where AWS publishes none."""
    matches = [quotas for prefix, quotas in _QUOTAS_BY_PREFIX.items() if instance_type.name.startswith(prefix)]
    assert len(matches) == 1, f"{len(matches)} quota classes for {instance_type.name}"
    return matches[0][market]


def increase_command(service: str, code: str, amount: int | str, region: str) -> str:
    """Return the command that requests an increase of a quota to `amount`. `service`: as in Service Quotas."""
    return (
        f"aws service-quotas request-service-quota-increase --service-code {service} --quota-code {code} "
        f"--desired-value {amount} --region {region}"
    )


@dataclass(frozen=True, kw_only=True)
class QuotaRequirement:
    """The amount that a stack needs of one quota. `key` and `value` are the setting with the largest share.

    `service`: service code of Service Quotas.
    """

    code: str
    name: str
    amount: int
    key: str
    value: Any
    service: str = "ec2"
    unit: str = "vCPUs"


def required_quotas(settings: StackSettings) -> list[QuotaRequirement]:
    """Return the quotas that a stack needs, one entry each, without those that AWS does not publish."""
    interfaces = QuotaRequirement(
        code=_INTERFACES.code,
        name=_INTERFACES.name,
        amount=settings.instances * len(settings.worker_type.interfaces(settings.efa)) + OTHER_INTERFACES,
        key=f"{CONFIG_KEY}.nodes",
        value=settings.nodes,
        service="vpc",
        unit="network interfaces",
    )
    return [*required_vcpu_quotas(settings), interfaces]


def required_vcpu_quotas(settings: StackSettings) -> list[QuotaRequirement]:
    """Return the quotas on vCPUs that a stack needs."""
    worker, head = settings.worker_type, settings.head_type
    uses: list[tuple[InstanceType, Market, int, str, Any]] = []
    for group in settings.groups:
        vcpus = max(entry.vcpus for entry in settings.types_of(group))
        uses.append((worker, group.market, vcpus * group.nodes, "nodes", settings.nodes))
    uses.append((head, "on-demand", head.vcpus, "head_instance_type", settings.head_instance_type))
    requirements: dict[str, QuotaRequirement] = {}
    for entry, market, vcpus, key, value in uses:
        quota = None if market == "capacity-block" else quota_of(entry, "spot" if market == "spot" else "on-demand")
        if quota is None:
            continue
        first = requirements.get(quota.code)
        requirements[quota.code] = QuotaRequirement(
            code=quota.code,
            name=quota.name,
            amount=vcpus + (first.amount if first else 0),
            key=first.key if first else f"{CONFIG_KEY}.{key}",
            value=first.value if first else value,
        )
    return list(requirements.values())
