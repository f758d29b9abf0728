"""Results of the EC2 lookups in a static account: networks, reservations, quotas and images."""

import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rehearsal.adapter.lookup_results import (
    LookupResult,
    missing_image_error,
    missing_resource_error,
    missing_route_table_error,
    single_match,
)

RESERVATION = "cr-0123456789abcdef0"
VPC, SUBNET = "vpc-0123456789abcdef0", "subnet-0123456789abcdef0"
_DEFAULT_QUOTA = 1_000_000.0


def reservation_properties(**changes: Any) -> dict[str, Any]:
    """Return the properties of an AWS::EC2::CapacityReservation: an active Capacity Block, with `changes`."""
    return {
        "AvailabilityZone": "us-east-1a",
        "AvailableInstanceCount": 64,
        "EndDate": "2099-01-01T11:30:00Z",
        "EndDateType": "limited",
        "InstanceMatchCriteria": "targeted",
        "InstancePlatform": "Linux/UNIX",
        "InstanceType": "p5en.48xlarge",
        "Interruptible": False,
        "ReservationType": "capacity-block",
        "StartDate": "2026-01-01T11:30:00Z",
        "State": "active",
        "Tenancy": "default",
        "TotalInstanceCount": 64,
        **changes,
    }


@dataclass(frozen=True, kw_only=True)
class StaticSubnet:
    """A subnet. `routes`: destination CIDR -> target id. `has_route_table`: otherwise it uses the main route table."""

    id: str
    availability_zone: str = "us-east-1a"
    cidr: str = "10.0.16.0/20"
    available_ip_count: int = 4000
    map_public_ip_on_launch: bool = False
    routes: Mapping[str, str] = field(default_factory=lambda: {"0.0.0.0/0": "nat-0123456789abcdef0"})
    has_route_table: bool = True


@dataclass(frozen=True, kw_only=True)
class StaticNetwork:
    """A VPC. `main_routes`: routes of its main route table.

    `endpoints`: names of the services for which it has an endpoint, such as com.amazonaws.us-east-1.s3.
    """

    cidr: str = "10.0.0.0/16"
    dns_support: bool = True
    dns_hostnames: bool = True
    subnets: tuple[StaticSubnet, ...] = (StaticSubnet(id=SUBNET),)
    main_routes: Mapping[str, str] = field(default_factory=dict)
    endpoints: frozenset[str] = frozenset()


def default_network(region: str) -> StaticNetwork:
    """Return a VPC that is valid for every stack."""
    subnet = StaticSubnet(id=SUBNET, availability_zone=f"{region}a")
    return StaticNetwork(subnets=(subnet,), endpoints=frozenset({f"com.amazonaws.{region}.s3"}))


@dataclass(frozen=True, kw_only=True)
class StaticEc2:
    """Returns the results of the EC2 lookups of a static account.

    `reservations`: properties by reservation id. `quotas`: values by quota code; other quotas have a large value.
    `networks`: by VPC id. `key_policy`: the policy of every KMS key.
    """

    account: str
    region: str
    reservations: Mapping[str, Mapping[str, Any]]
    quotas: Mapping[str, float]
    networks: Mapping[str, StaticNetwork]
    key_policy: Mapping[str, Any]

    def resource(self, arguments: Mapping[str, Any]) -> LookupResult:
        """Return a KMS key or a capacity reservation, as Cloud Control's GetResource does."""
        kind, name = arguments["typeName"], arguments["identifier"]
        if kind == "AWS::KMS::Key":
            return {"id": name, "properties": json.dumps({"KeyId": name, "KeyPolicy": self.key_policy}), **arguments}
        if kind != "AWS::EC2::CapacityReservation" or name not in self.reservations:
            raise missing_resource_error(kind, name)
        return {"id": name, "properties": json.dumps({"Id": name, **self.reservations[name]}), **arguments}

    def quota(self, arguments: Mapping[str, Any]) -> LookupResult:
        """Return a service quota."""
        value = float(self.quotas.get(arguments["quotaCode"], _DEFAULT_QUOTA))
        return {"id": arguments["quotaCode"], "quotaName": arguments["quotaCode"], "value": value, **arguments}

    def vpc(self, arguments: Mapping[str, Any]) -> LookupResult:
        """Return a VPC by id."""
        vpc_id = single_match([vpc_id for vpc_id in self.networks if vpc_id == arguments["id"]], "EC2 VPC")
        network = self.networks[vpc_id]
        return {
            "id": vpc_id,
            "cidrBlock": network.cidr,
            "cidrBlockAssociations": [{"associationId": "a", "cidrBlock": network.cidr, "state": "associated"}],
            "default": False,
            "enableDnsHostnames": network.dns_hostnames,
            "enableDnsSupport": network.dns_support,
            "ownerId": self.account,
            "state": "available",
        }

    def subnet(self, arguments: Mapping[str, Any]) -> LookupResult:
        """Return a subnet by id."""
        matches = [(vpc_id, subnet) for vpc_id, subnet in self._subnets if subnet.id == arguments["id"]]
        vpc_id, subnet = single_match(matches, "EC2 Subnet")
        return {
            "id": subnet.id,
            "availabilityZone": subnet.availability_zone,
            "availableIpAddressCount": subnet.available_ip_count,
            "cidrBlock": subnet.cidr,
            "mapPublicIpOnLaunch": subnet.map_public_ip_on_launch,
            "ownerId": self.account,
            "state": "available",
            "vpcId": vpc_id,
        }

    def route_table(self, arguments: Mapping[str, Any]) -> LookupResult:
        """Return the route table of the subnet `subnetId`, or the main route table of the VPC `vpcId`."""
        if "subnetId" in arguments:
            matches = [
                (vpc_id, subnet)
                for vpc_id, subnet in self._subnets
                if subnet.id == arguments["subnetId"] and subnet.has_route_table
            ]
            if not matches:
                raise missing_route_table_error()
            vpc_id, subnet = matches[0]
            table_id, routes = f"rtb-{subnet.id[7:]}", subnet.routes
        elif arguments.get("vpcId") in self.networks:
            vpc_id = arguments["vpcId"]
            table_id, routes = f"rtb-{vpc_id[4:]}", self.networks[vpc_id].main_routes
        else:
            raise missing_route_table_error()
        described = [{"cidrBlock": cidr, _target_key(target): target} for cidr, target in routes.items()]
        return {
            "id": table_id,
            "routeTableId": table_id,
            "vpcId": vpc_id,
            "routes": described,
            "ownerId": self.account,
        }

    def endpoint(self, arguments: Mapping[str, Any]) -> LookupResult:
        """Return the VPC's endpoint of a service: a gateway for S3, an interface endpoint for other services."""
        network = self.networks.get(arguments["vpcId"])
        service = arguments["serviceName"]
        name = single_match([service] if network and service in network.endpoints else [], "EC2 VPC Endpoint")
        endpoint = {"id": f"vpce-{len(name):017x}", "state": "available", **arguments}
        if not name.endswith(".s3"):
            return {**endpoint, "vpcEndpointType": "Interface", "routeTableIds": [], "privateDnsEnabled": True}
        assert network is not None
        subnet_tables = [f"rtb-{subnet.id[7:]}" for subnet in network.subnets if subnet.has_route_table]
        main_table = f"rtb-{arguments['vpcId'][4:]}"
        return {**endpoint, "vpcEndpointType": "Gateway", "routeTableIds": [*subnet_tables, main_table]}

    def image(self, arguments: Mapping[str, Any]) -> LookupResult:
        """Return an image by id or name. Every id and every name exists; a name with a month is that of any month."""
        values = {item["name"]: item["values"] for item in arguments["filters"]}
        names = values.get("name", ())
        ids = values.get("image-id") or [_image_id(name) for name in names]
        if not ids:
            raise missing_image_error()
        root_device = "/dev/xvda" if any(name.startswith("debian") for name in names) else "/dev/sda1"
        ebs = {"volume_size": "8", "volume_type": "gp3", "encrypted": "false", "delete_on_termination": "true"}
        return {
            "id": ids[0],
            "imageId": ids[0],
            "architecture": "x86_64",
            "blockDeviceMappings": [{"deviceName": root_device, "noDevice": "", "virtualName": "", "ebs": ebs}],
            "name": f"image {ids[0]}",
            "rootDeviceName": root_device,
            "rootDeviceType": "ebs",
            "state": "available",
            **arguments,
        }

    @property
    def _subnets(self) -> list[tuple[str, StaticSubnet]]:
        return [(vpc_id, subnet) for vpc_id, network in self.networks.items() for subnet in network.subnets]


_PERIOD = re.compile(r"\d+\*$")


def _image_id(name: str) -> str:
    return f"ami-{zlib.crc32(_PERIOD.sub('', name).encode()):017x}"


def _target_key(target: str) -> str:
    return {"nat": "natGatewayId", "tgw": "transitGatewayId", "eni": "networkInterfaceId"}.get(
        target.split("-")[0], "gatewayId"
    )
