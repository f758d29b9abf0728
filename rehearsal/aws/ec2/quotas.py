"""EC2's vCPU quotas: launches above one are refused, and Service Quotas reports their values."""

import json
from collections.abc import Callable, Iterable
from typing import Any

from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.servicequotas.exceptions import NoSuchResource
from moto.servicequotas.responses import ServiceQuotasResponse

from rehearsal.aws.active_faults import ACTIVE_FAULTS
from rehearsal.aws.ec2.reference import VcpuQuota, find_quota, load_reference
from rehearsal.aws.ec2.reservations import EXISTING_STATES, is_in_capacity_block, reservations
from rehearsal.aws.moto_extension import ec2_error, extend

INCREASED_VCPUS = 1_000_000.0  # a real account has far less: the fault `quota` lowers it
_RUNNING_STATES = EXISTING_STATES - {"stopping", "stopped", "shutting-down"}
_zero_quotas: set[str] = set()  # codes


def vcpus(instance_type: str) -> int:
    """Return the default vCPUs of an instance type."""
    return int(INSTANCE_TYPES[instance_type]["VCpuInfo"]["DefaultVCpus"])


def set_increased_quotas(codes: Iterable[str]) -> None:
    """Set all quotas except these to 0, the default of new accounts for accelerated instance types."""
    _zero_quotas.clear()
    _zero_quotas.update({quota.code for quota in load_reference().quotas}.difference(codes))


def quota_value(quota: VcpuQuota) -> float:
    """Return the account's value of a quota, in vCPUs."""
    if quota.code in _zero_quotas:
        return 0.0
    value = ACTIVE_FAULTS.quota(quota.code)
    return INCREASED_VCPUS if value is None else value


def _used_vcpus(backend: Any, quota: VcpuQuota) -> int:
    """Return the vCPUs that count against a quota: those of running instances and of unused On-Demand reservations.

    Instances in a Capacity Block count against none.
    """
    running = [
        vcpus(instance.instance_type)
        for instance in backend.all_instances()
        if instance.state in _RUNNING_STATES
        and not is_in_capacity_block(instance)
        and find_quota(instance.instance_type, "spot" if instance.lifecycle == "spot" else "on-demand") == quota
    ]
    reserved = [
        reservation.available_instance_count * vcpus(reservation.instance_type)
        for reservation in reservations(backend).values()
        if not reservation.is_block and find_quota(reservation.instance_type, "on-demand") == quota
    ]
    return sum(running) + sum(reserved)


def check_on_demand(backend: Any, instance_type: str, count: int, code: str = "VcpuLimitExceeded") -> None:
    """Raise EC2's error `code` if `count` On-Demand instances, or their reservation, exceed the quota."""
    quota = find_quota(instance_type, "on-demand")
    limit = quota_value(quota) if quota else 0.0
    if quota and _used_vcpus(backend, quota) + count * vcpus(instance_type) > limit:
        raise ec2_error(
            code,
            f"You have requested more vCPU capacity than your current vCPU limit of {limit:g} allows for the instance "
            "bucket that the specified instance type belongs to. Please visit "
            "http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this limit.",
        )


def check_spot(backend: Any, instance_type: str, count: int) -> None:
    """Raise MaxSpotInstanceCountExceeded if `count` Spot Instances exceed the quota."""
    quota = find_quota(instance_type, "spot")
    if quota and _used_vcpus(backend, quota) + count * vcpus(instance_type) > quota_value(quota):
        raise ec2_error("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded")


def _quota_response(response: Any, value: Callable[[VcpuQuota], float]) -> str:
    request = json.loads(response.body)
    if request.get("ServiceCode") != "ec2":
        raise NotImplementedError(f"quotas of the service {request.get('ServiceCode')}")
    quota = next((quota for quota in load_reference().quotas if quota.code == request.get("QuotaCode")), None)
    if quota is None:
        raise NoSuchResource
    content = {
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
    return json.dumps({"Quota": content})


def get_service_quota(self: Any) -> str:
    """Return the account's value of a quota."""
    return _quota_response(self, quota_value)


def get_aws_default_service_quota(self: Any) -> str:
    """Return this account's default. The real default for accelerated instance types is 0."""
    return _quota_response(self, lambda quota: INCREASED_VCPUS)


def install() -> None:
    """Add the two operations of Service Quotas to moto."""
    extend(ServiceQuotasResponse, get_service_quota, get_aws_default_service_quota)
