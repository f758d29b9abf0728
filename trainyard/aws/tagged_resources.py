"""Resources of a region that have a tag. EC2 and Auto Scaling list their own; the tagging API lists the other services.

The tagging API lists deleted resources for a while, and omits Auto Scaling groups and IAM roles. IAM roles and budgets
are not listed here either: they cost nothing, and IAM has no lookup by tag.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainyard.aws.clients import client
from trainyard.aws.ec2 import Tags, tags_of
from trainyard.aws.reservations import ENDED_STATES
from trainyard.aws.s3 import Bucket


@dataclass(frozen=True, kw_only=True)
class TaggedResource:
    """A resource. `kind` is as in ARNs, such as ec2:instance; `state` is empty for kinds without one."""

    kind: str
    id: str
    state: str = ""
    tags: Tags = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Ec2Kind:
    """How EC2 describes a kind: operation, its result, and the keys of id and state; `ended`: states without a cost."""

    operation: str
    result: str
    id: str
    state: str = "State"
    ended: frozenset[str] = frozenset()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    filters: str = "Filters"


_DELETED = frozenset(["deleted", "failed"])
_EC2_KINDS = {
    "instance": _Ec2Kind(
        operation="describe_instances", result="Reservations", id="InstanceId", ended=frozenset(["terminated"])
    ),
    "volume": _Ec2Kind(operation="describe_volumes", result="Volumes", id="VolumeId", ended=frozenset(["deleted"])),
    "snapshot": _Ec2Kind(
        operation="describe_snapshots", result="Snapshots", id="SnapshotId", parameters={"OwnerIds": ["self"]}
    ),
    "image": _Ec2Kind(operation="describe_images", result="Images", id="ImageId", parameters={"Owners": ["self"]}),
    "capacity-reservation": _Ec2Kind(
        operation="describe_capacity_reservations",
        result="CapacityReservations",
        id="CapacityReservationId",
        ended=ENDED_STATES,
    ),
    "natgateway": _Ec2Kind(
        operation="describe_nat_gateways", result="NatGateways", id="NatGatewayId", ended=_DELETED, filters="Filter"
    ),
    "elastic-ip": _Ec2Kind(operation="describe_addresses", result="Addresses", id="AllocationId"),
    "vpc-endpoint": _Ec2Kind(
        operation="describe_vpc_endpoints", result="VpcEndpoints", id="VpcEndpointId", ended=_DELETED
    ),
    "network-interface": _Ec2Kind(
        operation="describe_network_interfaces", result="NetworkInterfaces", id="NetworkInterfaceId", state="Status"
    ),
    "placement-group": _Ec2Kind(
        operation="describe_placement_groups", result="PlacementGroups", id="GroupName", ended=frozenset(["deleted"])
    ),
    "launch-template": _Ec2Kind(
        operation="describe_launch_templates", result="LaunchTemplates", id="LaunchTemplateId", state=""
    ),
    "subnet": _Ec2Kind(operation="describe_subnets", result="Subnets", id="SubnetId"),
    "security-group": _Ec2Kind(operation="describe_security_groups", result="SecurityGroups", id="GroupId"),
    "vpc": _Ec2Kind(operation="describe_vpcs", result="Vpcs", id="VpcId"),
}


def tagged_resources(region: str, key: str, value: str) -> list[TaggedResource]:
    """Return the resources with this tag that exist, by kind and id, except Capacity Blocks, which are prepaid."""
    resources = [
        *(resource for kind in _EC2_KINDS for resource in _of_ec2(region, kind, key, value)),
        *_groups(region, key, value),
        *_of_other_services(region, key, value),
    ]
    return sorted(resources, key=lambda resource: (resource.kind, resource.id))


def _of_ec2(region: str, name: str, key: str, value: str) -> Iterator[TaggedResource]:
    kind, ec2 = _EC2_KINDS[name], client("ec2", region)
    request = {**kind.parameters, kind.filters: [{"Name": f"tag:{key}", "Values": [value]}]}
    if ec2.can_paginate(kind.operation):
        pages = ec2.get_paginator(kind.operation).paginate(**request)
    else:
        pages = [getattr(ec2, kind.operation)(**request)]
    for page in pages:
        for item in page[kind.result]:
            for resource in item["Instances"] if name == "instance" else [item]:
                state = resource.get(kind.state, "")
                state = str(state["Name"] if isinstance(state, dict) else state)
                if state not in kind.ended and resource.get("ReservationType") != "capacity-block":
                    yield TaggedResource(kind=f"ec2:{name}", id=resource[kind.id], state=state, tags=tags_of(resource))


def _groups(region: str, key: str, value: str) -> Iterator[TaggedResource]:
    pages = client("autoscaling", region).get_paginator("describe_auto_scaling_groups")
    for page in pages.paginate(Filters=[{"Name": f"tag:{key}", "Values": [value]}]):
        for group in page["AutoScalingGroups"]:
            name, kind = group["AutoScalingGroupName"], "autoscaling:autoScalingGroup"
            yield TaggedResource(kind=kind, id=name, state=group.get("Status", ""), tags=tags_of(group))


def _of_other_services(region: str, key: str, value: str) -> Iterator[TaggedResource]:
    pages = client("resourcegroupstaggingapi", region).get_paginator("get_resources")
    for page in pages.paginate(TagFilters=[{"Key": key, "Values": [value]}]):
        for item in page["ResourceTagMappingList"]:
            _, _, service, _, _, name = item["ResourceARN"].split(":", 5)
            if service in ("ec2", "autoscaling") or (service == "s3" and not Bucket(name, region).exists()):
                continue
            kind, _, identifier = name.partition("/")
            full_kind = f"{service}:{kind}" if identifier else service
            yield TaggedResource(kind=full_kind, id=identifier or name, tags=tags_of(item))
