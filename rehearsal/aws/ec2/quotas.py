"""The quotas of vCPUs that EC2 bounds running instances by, and Service Quotas' answers about them."""

import json
from collections.abc import Callable
from functools import cache
from typing import Any

from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.servicequotas.exceptions import NoSuchResource
from moto.servicequotas.responses import ServiceQuotasResponse

from rehearsal.aws.ec2.reservations import LIVING, block_of, reservations
from rehearsal.aws.extension import extend, refuse
from rehearsal.aws.injection import INJECTED
from trainyard.config.catalog import catalog
from trainyard.config.quotas import QUOTAS, Market, Quota, quota_of

DEFAULT_VCPUS = 1_000_000.0  # a real account has far less: the fault `quota` gives it
_RUNNING = LIVING - {"stopping", "stopped", "shutting-down"}


def vcpus(instance_type: str) -> int:
    return int(INSTANCE_TYPES[instance_type]["VCpuInfo"]["DefaultVCpus"])


@cache
def _class_of(instance_type: str, market: Market) -> Quota | None:
    """The quota that a type counts for. Raises NotImplementedError where it is not known."""
    entry = catalog().get(instance_type)
    if entry is None:
        raise NotImplementedError(f"the quota of {instance_type}, which is not in the hardware catalog")
    return quota_of(entry, market)


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
        and _class_of(each.instance_type, "spot" if each.lifecycle == "spot" else "on-demand") == quota
    ]
    reserved = [
        held.available_instance_count * vcpus(held.instance_type)
        for held in reservations(backend).values()
        if not held.is_block and _class_of(held.instance_type, "on-demand") == quota
    ]
    return sum(running) + sum(reserved)


def check_on_demand(backend: Any, instance_type: str, count: int, code: str = "VcpuLimitExceeded") -> None:
    """Refuse On-Demand instances, or their reservation, above the quota."""
    quota = _class_of(instance_type, "on-demand")
    most = value_of(quota) if quota else 0.0
    if quota and _used(backend, quota) + count * vcpus(instance_type) > most:
        raise refuse(
            code,
            f"You have requested more vCPU capacity than your current vCPU limit of {most:g} allows for the instance "
            "bucket that the specified instance type belongs to. Please visit "
            "http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this limit.",
        )


def check_spot(backend: Any, instance_type: str, count: int) -> None:
    """Refuse Spot Instances above the quota."""
    quota = _class_of(instance_type, "spot")
    if quota and _used(backend, quota) + count * vcpus(instance_type) > value_of(quota):
        raise refuse("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded")


def _told(response: Any, value: Callable[[Quota], float]) -> str:
    asked = json.loads(response.body)
    if asked.get("ServiceCode") != "ec2":
        raise NotImplementedError(f"quotas of the service {asked.get('ServiceCode')}")
    quota = next((each for each in QUOTAS if each.code == asked.get("QuotaCode")), None)
    if quota is None:
        raise NoSuchResource
    told = {
        "ServiceCode": "ec2",
        "ServiceName": "Amazon Elastic Compute Cloud (Amazon EC2)",
        "QuotaArn": f"arn:aws:servicequotas:{response.region}:{response.current_account}:ec2/{quota.code}",
        "QuotaCode": quota.code,
        "QuotaName": quota.name,
        "Value": value(quota),
        "Unit": "None",
        "Adjustable": True,
        "GlobalQuota": False,
    }
    return json.dumps({"Quota": told})


def get_service_quota(self: Any) -> str:
    return _told(self, value_of)


def get_aws_default_service_quota(self: Any) -> str:
    """Of this account: AWS's own defaults for accelerated types are 0."""
    return _told(self, lambda quota: DEFAULT_VCPUS)


def install() -> None:
    extend(ServiceQuotasResponse, get_service_quota, get_aws_default_service_quota)
