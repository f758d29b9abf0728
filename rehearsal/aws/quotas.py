"""The quotas of vCPUs that EC2 bounds running instances by, and Service Quotas' answers about them."""

import json
import re
from dataclasses import dataclass
from typing import Any

from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.servicequotas.exceptions import NoSuchResource
from moto.servicequotas.responses import ServiceQuotasResponse

from rehearsal.aws.extension import extend, refuse
from rehearsal.aws.injection import INJECTED
from rehearsal.aws.reservations import LIVING, block_of, reservations

DEFAULT_VCPUS = 1_000_000.0  # a real account has far less: the fault `quota` gives it
_RUNNING = LIVING - {"stopping", "stopped", "shutting-down"}


@dataclass(frozen=True)
class Quota:
    """One quota. `families`: what the names of its instance types begin with, up to the first digit or hyphen."""

    code: str
    name: str
    families: str
    spot: bool

    def told(self, value: float, region: str, account: str) -> dict[str, Any]:
        return {
            "ServiceCode": "ec2",
            "ServiceName": "Amazon Elastic Compute Cloud (Amazon EC2)",
            "QuotaArn": f"arn:aws:servicequotas:{region}:{account}:ec2/{self.code}",
            "QuotaCode": self.code,
            "QuotaName": self.name,
            "Value": value,
            "Unit": "None",
            "Adjustable": True,
            "GlobalQuota": False,
        }


_STANDARD = r"(a|c|d|h|i|im|is|m|r|t|z)\d"
# https://docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html; codes as Service Quotas tells them.
QUOTAS = (
    Quota("L-417A185B", "Running On-Demand P instances", r"p\d", spot=False),
    Quota("L-DB2E81BA", "Running On-Demand G and VT instances", r"(g|gr|vt)\d", spot=False),
    Quota("L-1216C47A", "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances", _STANDARD, spot=False),
    Quota("L-7212CCBC", "All P4, P3 and P2 Spot Instance Requests", r"p[234]", spot=True),
    Quota("L-C4BD4855", "All P5 Spot Instance Requests", r"p5", spot=True),
    Quota("L-3819A6DF", "All G and VT Spot Instance Requests", r"(g|gr|vt)\d", spot=True),
    Quota("L-34B43A08", "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests", _STANDARD, spot=True),
)


def vcpus(instance_type: str) -> int:
    return int(INSTANCE_TYPES[instance_type]["VCpuInfo"]["DefaultVCpus"])


def quota_of(instance_type: str, spot: bool) -> Quota:
    """The quota that a type counts for. Raises NotImplementedError where it is not known."""
    for quota in QUOTAS:
        if quota.spot == spot and re.match(quota.families, instance_type):
            return quota
    raise NotImplementedError(f"the {'Spot' if spot else 'On-Demand'} quota of {instance_type}")


def value_of(quota: Quota) -> float:
    found = INJECTED.quota(quota.code)
    return DEFAULT_VCPUS if found is None else found


def _used(backend: Any, quota: Quota) -> int:
    """vCPUs that count for it: running ones, and On-Demand ones that are reserved and unused.

    Instances in a Capacity Block count for none.
    """
    running = [
        vcpus(each.instance_type)
        for each in backend.all_instances()
        if each.state in _RUNNING
        and not block_of(each)
        and _counts(quota, each.instance_type, each.lifecycle == "spot")
    ]
    reserved = [
        held.available_instance_count * vcpus(held.instance_type)
        for held in reservations(backend).values()
        if not held.is_block and _counts(quota, held.instance_type, spot=False)
    ]
    return sum(running) + sum(reserved)


def _counts(quota: Quota, instance_type: str, spot: bool) -> bool:
    return quota.spot == spot and re.match(quota.families, instance_type) is not None


def check_on_demand(backend: Any, instance_type: str, count: int, code: str = "VcpuLimitExceeded") -> None:
    """Refuse On-Demand instances, or their reservation, above the quota."""
    quota = quota_of(instance_type, spot=False)
    most = value_of(quota)
    if _used(backend, quota) + count * vcpus(instance_type) > most:
        raise refuse(
            code,
            f"You have requested more vCPU capacity than your current vCPU limit of {most:g} allows for the instance "
            "bucket that the specified instance type belongs to. Please visit "
            "http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this limit.",
        )


def check_spot(backend: Any, instance_type: str, count: int) -> None:
    """Refuse Spot Instances above the quota."""
    quota = quota_of(instance_type, spot=True)
    if _used(backend, quota) + count * vcpus(instance_type) > value_of(quota):
        raise refuse("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded")


def _asked(response: Any) -> Quota:
    asked = json.loads(response.body)
    found = next((each for each in QUOTAS if each.code == asked.get("QuotaCode")), None)
    if asked.get("ServiceCode") != "ec2":
        raise NotImplementedError(f"quotas of the service {asked.get('ServiceCode')}")
    if found is None:
        raise NoSuchResource
    return found


def get_service_quota(self: Any) -> str:
    quota = _asked(self)
    return json.dumps({"Quota": quota.told(value_of(quota), self.region, self.current_account)})


def get_aws_default_service_quota(self: Any) -> str:
    """Of this account: AWS's own defaults for accelerated types are 0."""
    return json.dumps({"Quota": _asked(self).told(DEFAULT_VCPUS, self.region, self.current_account)})


def install() -> None:
    extend(ServiceQuotasResponse, get_service_quota, get_aws_default_service_quota)
