"""EC2's service quotas on running instances, which count vCPUs by class of instance type.

Names and codes: EC2 developer guide, "Amazon EC2 instance type quotas". Capacity Blocks fall under none of these.
"""

from typing import Literal

from pydantic import Field

from trainyard.base import Contract
from trainyard.config.catalog import InstanceType

Market = Literal["on-demand", "spot"]


class Quota(Contract):
    """One quota of the service `ec2`, in vCPUs of an account and region."""

    code: str = Field(pattern="^L-[0-9A-F]{8}$", description="Quota code.")
    name: str = Field(description="AWS's name for it.")


_P = Quota(code="L-417A185B", name="Running On-Demand P instances")
_G = Quota(code="L-DB2E81BA", name="Running On-Demand G and VT instances")
_STANDARD = Quota(code="L-1216C47A", name="Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances")
_SPOT_P4 = Quota(code="L-7212CCBC", name="All P4, P3 and P2 Spot Instance Requests")
_SPOT_P5 = Quota(code="L-C4BD4855", name="All P5 Spot Instance Requests")
_SPOT_G = Quota(code="L-3819A6DF", name="All G and VT Spot Instance Requests")
_SPOT_STANDARD = Quota(code="L-34B43A08", name="All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests")

# Beginning of the type's name -> its quotas. AWS names no class of spot requests for P6: nothing to compare with.
_CLASSES: dict[str, dict[Market, Quota | None]] = {
    "p3": {"on-demand": _P, "spot": _SPOT_P4},
    "p4": {"on-demand": _P, "spot": _SPOT_P4},
    "p5": {"on-demand": _P, "spot": _SPOT_P5},
    "p6": {"on-demand": _P, "spot": None},
    "g": {"on-demand": _G, "spot": _SPOT_G},
    "c": {"on-demand": _STANDARD, "spot": _SPOT_STANDARD},
    "m": {"on-demand": _STANDARD, "spot": _SPOT_STANDARD},
    "t": {"on-demand": _STANDARD, "spot": _SPOT_STANDARD},
}

QUOTAS = tuple(
    sorted({quota for quotas in _CLASSES.values() for quota in quotas.values() if quota}, key=lambda q: q.code)
)


def quota_of(instance_type: InstanceType, market: Market) -> Quota | None:
    """The quota that the default vCPUs of such instances count against, or None where AWS publishes none."""
    found = [quotas for beginning, quotas in _CLASSES.items() if instance_type.name.startswith(beginning)]
    assert len(found) == 1, f"{len(found)} classes of quota for {instance_type.name}"
    return found[0][market]
