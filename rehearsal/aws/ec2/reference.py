"""Facts of the real EC2 that moto does not ship: quotas, On-Demand prices, some instance types. Data: reference.yaml.

The emulated account uses this file and moto's data, never trainyard.config, whose errors it would repeat.
"""

import re
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field

from trainyard.base import StrictModel

Market = Literal["on-demand", "spot"]


class VcpuQuota(StrictModel):
    """A quota of the service `ec2` on the vCPUs of running instances."""

    code: str = Field(pattern="^L-[0-9A-F]{8}$", description="Quota code.")
    name: str = Field(description="Quota name.")
    market: Market = Field(description="Purchase option of the instances that count.")
    families: tuple[str, ...] = Field(default=(), description="Letters before the first digit of a type name.")
    prefixes: tuple[str, ...] = Field(default=(), description="Start of a type name.")

    def covers(self, instance_type: str) -> bool:
        """Return whether instances of this type count against the quota."""
        family = re.match(r"[a-z]+", instance_type)
        return (family is not None and family[0] in self.families) or instance_type.startswith(self.prefixes)


class Reference(StrictModel):
    """The content of reference.yaml."""

    date: str = Field(description="Day of the data, YYYY-MM-DD.")
    quotas: tuple[VcpuQuota, ...] = Field(description="Quotas on running instances.")
    on_demand_usd: dict[str, float] = Field(description="Instance type -> USD an hour, Linux, us-east-1.")
    instance_types: dict[str, dict[str, Any]] = Field(description="Instance type -> its DescribeInstanceTypes entry.")


@cache
def load_reference() -> Reference:
    """Return the data of reference.yaml."""
    file = Path(__file__).with_name("reference.yaml")
    return Reference.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")))


@cache
def find_quota(instance_type: str, market: Market) -> VcpuQuota | None:
    """Return the quota that the vCPUs of such instances count against; None where AWS publishes none (P6 on Spot).

    Raises NotImplementedError for an instance family without quotas in reference.yaml.
    """
    quotas = [quota for quota in load_reference().quotas if quota.covers(instance_type)]
    if not quotas:
        raise NotImplementedError(f"the quota of {instance_type}: reference.yaml has none for its family")
    return next((quota for quota in quotas if quota.market == market), None)


def install() -> None:
    """Add the instance types that moto's data omits."""
    from moto.ec2.models.instance_types import INSTANCE_TYPES  # slow import, which readers of the quotas avoid

    for name, description in load_reference().instance_types.items():
        INSTANCE_TYPES.setdefault(name, description)
