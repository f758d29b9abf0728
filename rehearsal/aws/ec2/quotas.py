"""Quotas on vCPUs and network interfaces: launches above one are refused, and Service Quotas reports their values."""

import json
from collections.abc import Iterable
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.ec2.responses import EC2Response
from moto.servicequotas.exceptions import NoSuchResource
from moto.servicequotas.responses import ServiceQuotasResponse

from rehearsal.aws.active_faults import ACTIVE_FAULTS
from rehearsal.aws.ec2.reference import VcpuQuota, find_quota, load_reference
from rehearsal.aws.ec2.reservations import EXISTING_STATES, is_in_capacity_block, reservations
from rehearsal.aws.moto_extension import ec2_error, extend

INCREASED_VCPUS = 1_000_000.0  # a real account has far less: the fault `quota` lowers it
# Default and code: VPC user guide, "Amazon VPC quotas", and awslimitchecker pull request 509.
INTERFACE_QUOTA_CODE, INTERFACE_QUOTA_NAME, DEFAULT_INTERFACES = "L-DF5E4CA3", "Network interfaces per Region", 5000.0
_RUNNING_STATES = EXISTING_STATES - {"stopping", "stopped", "shutting-down"}
_zero_quotas: set[str] = set()  # codes


def vcpus(instance_type: str) -> int:
    """Return the default vCPUs of an instance type."""
    return int(INSTANCE_TYPES[instance_type]["VCpuInfo"]["DefaultVCpus"])


def set_other_quotas_to_zero(codes: Iterable[str]) -> None:
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


def interface_quota_value() -> float:
    """Return the account's quota on network interfaces of a region."""
    value = ACTIVE_FAULTS.interface_quota()
    return DEFAULT_INTERFACES if value is None else value


def check_interfaces(backend: Any, count: int) -> None:
    """Raise NetworkInterfaceLimitExceeded if `count` new network interfaces exceed the region's quota.

    Source of the code: EC2 API reference, "Error codes for the Amazon EC2 API". Interfaces of FSx, NAT gateways and VPC
    endpoints count, but their creation is not refused: the errors of those services are not documented.
    """
    if len(backend.enis) + count > interface_quota_value():
        raise ec2_error(
            "NetworkInterfaceLimitExceeded",
            f"The maximum number of network interfaces has been reached: {interface_quota_value():g} per Region.",
        )


def create_network_interface(self: Any) -> ActionResult:
    """Create a network interface within the quota."""
    check_interfaces(self.ec2_backend, 1)
    response: ActionResult = _moto_create_interface(self)
    return response


def _quota_response(response: Any, is_default: bool) -> str:
    request = json.loads(response.body)
    service, code = request.get("ServiceCode"), request.get("QuotaCode")
    if service == "vpc":
        if code != INTERFACE_QUOTA_CODE:
            raise NotImplementedError(f"the quota {code} of the service vpc")
        number = DEFAULT_INTERFACES if is_default else interface_quota_value()
        return _format_quota(response, "vpc", "Amazon Virtual Private Cloud (Amazon VPC)", INTERFACE_QUOTA_NAME, number)
    if service != "ec2":
        raise NotImplementedError(f"quotas of the service {service}")
    quota = next((quota for quota in load_reference().quotas if quota.code == code), None)
    if quota is None:
        raise NoSuchResource
    number = INCREASED_VCPUS if is_default else quota_value(quota)
    return _format_quota(response, "ec2", "Amazon Elastic Compute Cloud (Amazon EC2)", quota.name, number)


def _format_quota(response: Any, service: str, service_name: str, name: str, value: float) -> str:
    code = json.loads(response.body)["QuotaCode"]
    content = {
        "ServiceCode": service,
        "ServiceName": service_name,
        "QuotaArn": f"arn:aws:servicequotas:{response.region}:{response.current_account}:{service}/{code}",
        "QuotaCode": code,
        "QuotaName": name,
        "Value": value,
        "Unit": "None",
        "Adjustable": True,
        "GlobalQuota": False,
    }
    return json.dumps({"Quota": content})


def get_service_quota(self: Any) -> str:
    """Return the account's value of a quota."""
    return _quota_response(self, is_default=False)


def get_aws_default_service_quota(self: Any) -> str:
    """Return this account's default. The real default for vCPUs of accelerated instance types is 0."""
    return _quota_response(self, is_default=True)


_moto_create_interface = EC2Response.create_network_interface


def install() -> None:
    """Add the two operations of Service Quotas to moto, and check the creation of network interfaces."""
    extend(ServiceQuotasResponse, get_service_quota, get_aws_default_service_quota)
    extend(EC2Response, create_network_interface)
