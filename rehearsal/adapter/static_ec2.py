"""What a static account answers to look-ups of EC2: networks, reservations, quotas and images, all given."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rehearsal.adapter.lookup_answers import no_image, no_resource, no_route_table, one_of

Answer = dict[str, Any]
RESERVATION = "cr-0123456789abcdef0"
VPC, SUBNET = "vpc-0123456789abcdef0", "subnet-0123456789abcdef0"
DEBIAN = "/aws/service/debian/release/12/latest/amd64"
_LARGE = 1_000_000.0


def reservation(**changes: Any) -> dict[str, Any]:
    """Properties of an AWS::EC2::CapacityReservation: an active Capacity Block, but for `changes`."""
    return {
        "AvailabilityZone": "us-east-1a",
        "AvailableInstanceCount": 64,
        "EndDate": "2099-01-01T11:30:00Z",
        "EndDateType": "limited",
        "InstanceMatchCriteria": "targeted",
        "InstancePlatform": "Linux/UNIX",
        "InstanceType": "p5en.48xlarge",
        "ReservationType": "capacity-block",
        "StartDate": "2026-01-01T11:30:00Z",
        "State": "active",
        "Tenancy": "default",
        "TotalInstanceCount": 64,
        **changes,
    }


@dataclass(frozen=True, kw_only=True)
class StaticSubnet:
    """A subnet. `routes`: destination to target id; `own_table`: whether it has a route table of its own."""

    id: str
    zone: str = "us-east-1a"
    cidr: str = "10.0.16.0/20"
    free: int = 4000
    public: bool = False
    routes: Mapping[str, str] = field(default_factory=lambda: {"0.0.0.0/0": "nat-0123456789abcdef0"})
    own_table: bool = True


@dataclass(frozen=True, kw_only=True)
class StaticNetwork:
    """A VPC. `endpoints`: names of the services that it has an endpoint of, such as com.amazonaws.us-east-1.s3."""

    cidr: str = "10.0.0.0/16"
    dns_support: bool = True
    dns_hostnames: bool = True
    subnets: tuple[StaticSubnet, ...] = (StaticSubnet(id=SUBNET),)
    main_routes: Mapping[str, str] = field(default_factory=dict)
    endpoints: frozenset[str] = frozenset()


def suiting_network(region: str) -> StaticNetwork:
    """A VPC that any stack can be put into."""
    subnet = StaticSubnet(id=SUBNET, zone=f"{region}a")
    return StaticNetwork(subnets=(subnet,), endpoints=frozenset({f"com.amazonaws.{region}.s3"}))


@dataclass(frozen=True, kw_only=True)
class StaticEc2:
    """The answers. `quotas`: quota code to value, of others a large one; `networks`: by VPC id.

    `key_policy`: of every KMS key.
    """

    account: str
    region: str
    reservations: Mapping[str, Mapping[str, Any]]
    quotas: Mapping[str, float]
    networks: Mapping[str, StaticNetwork]
    key_policy: Mapping[str, Any]

    def resource(self, given: Mapping[str, Any]) -> Answer:
        kind, name = given["typeName"], given["identifier"]
        if kind == "AWS::KMS::Key":
            return {"id": name, "properties": json.dumps({"KeyId": name, "KeyPolicy": self.key_policy}), **given}
        if kind != "AWS::EC2::CapacityReservation" or name not in self.reservations:
            raise no_resource(kind, name)
        return {"id": name, "properties": json.dumps({"Id": name, **self.reservations[name]}), **given}

    def quota(self, given: Mapping[str, Any]) -> Answer:
        value = float(self.quotas.get(given["quotaCode"], _LARGE))
        return {"id": given["quotaCode"], "quotaName": given["quotaCode"], "value": value, **given}

    def vpc(self, given: Mapping[str, Any]) -> Answer:
        name = one_of([each for each in self.networks if each == given["id"]], "EC2 VPC")
        network = self.networks[name]
        return {
            "id": name,
            "cidrBlock": network.cidr,
            "cidrBlockAssociations": [{"associationId": "a", "cidrBlock": network.cidr, "state": "associated"}],
            "default": False,
            "enableDnsHostnames": network.dns_hostnames,
            "enableDnsSupport": network.dns_support,
            "ownerId": self.account,
            "state": "available",
        }

    def subnet(self, given: Mapping[str, Any]) -> Answer:
        vpc, found = one_of([pair for pair in self._subnets if pair[1].id == given["id"]], "EC2 Subnet")
        return {
            "id": found.id,
            "availabilityZone": found.zone,
            "availableIpAddressCount": found.free,
            "cidrBlock": found.cidr,
            "mapPublicIpOnLaunch": found.public,
            "ownerId": self.account,
            "state": "available",
            "vpcId": vpc,
        }

    def route_table(self, given: Mapping[str, Any]) -> Answer:
        """A subnet's own table; or, asked for by VPC, the main one."""
        if "subnetId" in given:
            own = [pair for pair in self._subnets if pair[1].id == given["subnetId"] and pair[1].own_table]
            if not own:
                raise no_route_table()
            vpc, subnet = own[0]
            name, routes = f"rtb-{subnet.id[7:]}", subnet.routes
        elif given.get("vpcId") in self.networks:
            vpc = given["vpcId"]
            name, routes = f"rtb-{vpc[4:]}", self.networks[vpc].main_routes
        else:
            raise no_route_table()
        told = [{"cidrBlock": cidr, _target_key(target): target} for cidr, target in routes.items()]
        return {"id": name, "routeTableId": name, "vpcId": vpc, "routes": told, "ownerId": self.account}

    def endpoint(self, given: Mapping[str, Any]) -> Answer:
        network = self.networks.get(given["vpcId"])
        found = [given["serviceName"]] if network and given["serviceName"] in network.endpoints else []
        name = one_of(found, "EC2 VPC Endpoint")
        answer = {"id": f"vpce-{len(name):017x}", "state": "available", **given}
        if not name.endswith(".s3"):
            return {**answer, "vpcEndpointType": "Interface", "routeTableIds": [], "privateDnsEnabled": True}
        assert network is not None
        own = [f"rtb-{subnet.id[7:]}" for subnet in network.subnets if subnet.own_table]
        return {**answer, "vpcEndpointType": "Gateway", "routeTableIds": [*own, f"rtb-{given['vpcId'][4:]}"]}

    def image(self, given: Mapping[str, Any]) -> Answer:
        """Every image id names one."""
        ids = [name for item in given["filters"] if item["name"] == "image-id" for name in item["values"]]
        if not ids:
            raise no_image()
        root = "/dev/xvda" if ids[0] == image_of(DEBIAN) else "/dev/sda1"
        ebs = {"volume_size": "8", "volume_type": "gp3", "encrypted": "false", "delete_on_termination": "true"}
        return {
            "id": ids[0],
            "imageId": ids[0],
            "architecture": "x86_64",
            "blockDeviceMappings": [{"deviceName": root, "noDevice": "", "virtualName": "", "ebs": ebs}],
            "name": f"image {ids[0]}",
            "rootDeviceName": root,
            "rootDeviceType": "ebs",
            "state": "available",
            **given,
        }

    @property
    def _subnets(self) -> list[tuple[str, StaticSubnet]]:
        return [(vpc, subnet) for vpc, network in self.networks.items() for subnet in network.subnets]


def image_of(parameter: str) -> str:
    """The image that a parameter names."""
    return f"ami-{len(parameter):017x}"


def _target_key(target: str) -> str:
    return {"nat": "natGatewayId", "tgw": "transitGatewayId", "eni": "networkInterfaceId"}.get(
        target.split("-")[0], "gatewayId"
    )
