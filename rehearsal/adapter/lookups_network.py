"""Look-ups of a network that a stack says exists: VPC, subnets, their routes, endpoints."""

from collections.abc import Mapping
from typing import Any

from botocore.exceptions import ClientError

from rehearsal.adapter.handler import Keys, known
from rehearsal.adapter.lookup_answers import Answer, filters_of, no_route_table, one_of, tags_of
from rehearsal.adapter.session import Aws

_FILTERS = known("name", "values")
_ROUTE_TARGETS = {
    "CarrierGatewayId": "carrierGatewayId",
    "CoreNetworkArn": "coreNetworkArn",
    "EgressOnlyInternetGatewayId": "egressOnlyGatewayId",
    "InstanceId": "instanceId",
    "LocalGatewayId": "localGatewayId",
    "NatGatewayId": "natGatewayId",
    "NetworkInterfaceId": "networkInterfaceId",
    "TransitGatewayId": "transitGatewayId",
    "VpcPeeringConnectionId": "vpcPeeringConnectionId",
}


def _vpc(aws: Aws, given: Mapping[str, Any]) -> Answer:
    ec2, wanted = aws.client("ec2"), filters_of(given, cidrBlock="cidr", state="state")
    found = one_of(_described(ec2.describe_vpcs, "Vpcs", given, "VpcIds", "InvalidVpcID.NotFound", wanted), "EC2 VPC")
    vpc = found["VpcId"]
    dns = {
        key: ec2.describe_vpc_attribute(VpcId=vpc, Attribute=key)[f"E{key[1:]}"]["Value"]
        for key in ("enableDnsSupport", "enableDnsHostnames")
    }
    main = _tables(aws, [("vpc-id", [vpc]), ("association.main", ["true"])])
    return {
        "id": vpc,
        "arn": f"arn:aws:ec2:{aws.region}:{found['OwnerId']}:vpc/{vpc}",
        "cidrBlock": found["CidrBlock"],
        "cidrBlockAssociations": [
            {"associationId": each["AssociationId"], "cidrBlock": each["CidrBlock"], "state": "associated"}
            for each in found.get("CidrBlockAssociationSet", [])
        ],
        "default": found["IsDefault"],
        "dhcpOptionsId": found["DhcpOptionsId"],
        "instanceTenancy": found["InstanceTenancy"],
        "mainRouteTableId": main[0]["RouteTableId"] if main else "",
        "ownerId": found["OwnerId"],
        "state": found["State"],
        "tags": tags_of(found),
        **dns,
    }


def _subnet(aws: Aws, given: Mapping[str, Any]) -> Answer:
    describe = aws.client("ec2").describe_subnets
    wanted = filters_of(given, vpcId="vpc-id", availabilityZone="availability-zone", cidrBlock="cidr", state="state")
    found = one_of(
        _described(describe, "Subnets", given, "SubnetIds", "InvalidSubnetID.NotFound", wanted), "EC2 Subnet"
    )
    return {
        "id": found["SubnetId"],
        "arn": found["SubnetArn"],
        "availabilityZone": found["AvailabilityZone"],
        "availabilityZoneId": found["AvailabilityZoneId"],
        "availableIpAddressCount": found["AvailableIpAddressCount"],
        "cidrBlock": found["CidrBlock"],
        "defaultForAz": found["DefaultForAz"],
        "mapPublicIpOnLaunch": found["MapPublicIpOnLaunch"],
        "ownerId": found["OwnerId"],
        "state": found["State"],
        "tags": tags_of(found),
        "vpcId": found["VpcId"],
    }


def _route_table(aws: Aws, given: Mapping[str, Any]) -> Answer:
    tables = _tables(
        aws, filters_of(given, subnetId="association.subnet-id", vpcId="vpc-id", routeTableId="route-table-id")
    )
    if not tables:
        raise no_route_table()
    found = one_of(tables, "Route Table")
    return {
        "id": found["RouteTableId"],
        "arn": f"arn:aws:ec2:{aws.region}:{found['OwnerId']}:route-table/{found['RouteTableId']}",
        "associations": [
            {
                "main": each.get("Main", False),
                "routeTableAssociationId": each["RouteTableAssociationId"],
                "routeTableId": each["RouteTableId"],
                "subnetId": each.get("SubnetId", ""),
                "gatewayId": each.get("GatewayId", ""),
            }
            for each in found["Associations"]
        ],
        "gatewayId": "",
        "ownerId": found["OwnerId"],
        "routeTableId": found["RouteTableId"],
        "routes": [route for each in found["Routes"] if (route := _route(each)) is not None],
        "subnetId": given.get("subnetId", ""),
        "tags": tags_of(found),
        "vpcId": found["VpcId"],
    }


def _route(route: Mapping[str, Any]) -> Answer | None:
    """None for those that the provider leaves out: a VPC's own, propagated ones, and those of gateway endpoints."""
    gateway = route.get("GatewayId", "")
    if gateway == "local" or route.get("Origin") == "EnableVgwRoutePropagation":
        return None
    if gateway.startswith("vpce-") and route.get("DestinationPrefixListId"):
        return None
    target = {"vpcEndpointId" if gateway.startswith("vpce-") else "gatewayId": gateway}
    return {
        "cidrBlock": route.get("DestinationCidrBlock", ""),
        "ipv6CidrBlock": route.get("DestinationIpv6CidrBlock", ""),
        "destinationPrefixListId": route.get("DestinationPrefixListId", ""),
        **{"gatewayId": "", "vpcEndpointId": "", **target},
        **{ours: route.get(theirs) or "" for theirs, ours in _ROUTE_TARGETS.items()},
    }


def _endpoint(aws: Aws, given: Mapping[str, Any]) -> Answer:
    wanted = filters_of(
        given,
        vpcId="vpc-id",
        serviceName="service-name",
        state="vpc-endpoint-state",
        vpcEndpointType="vpc-endpoint-type",
    )
    describe = aws.client("ec2").describe_vpc_endpoints
    unknown = "InvalidVpcEndpointId.NotFound"
    found = one_of(_described(describe, "VpcEndpoints", given, "VpcEndpointIds", unknown, wanted), "EC2 VPC Endpoint")
    name, owner = found["VpcEndpointId"], found["OwnerId"]
    return {
        "id": name,
        "arn": f"arn:aws:ec2:{aws.region}:{owner}:vpc-endpoint/{name}",
        "networkInterfaceIds": found.get("NetworkInterfaceIds", []),
        "ownerId": owner,
        "privateDnsEnabled": found.get("PrivateDnsEnabled", False),
        "requesterManaged": found.get("RequesterManaged", False),
        "routeTableIds": found.get("RouteTableIds", []),
        "securityGroupIds": [group["GroupId"] for group in found.get("Groups", [])],
        "serviceName": found["ServiceName"],
        "state": found["State"],
        "subnetIds": found.get("SubnetIds", []),
        "tags": tags_of(found),
        "vpcEndpointType": found["VpcEndpointType"],
        "vpcId": found["VpcId"],
    }


def _described(
    describe: Any, key: str, given: Mapping[str, Any], ids: str, unknown: str, wanted: list[tuple[str, list[str]]]
) -> list[Any]:
    """All that match. An id that EC2 does not know is none."""
    named = {ids: [given["id"]]} if given.get("id") else {}
    filters = {"Filters": [{"Name": name, "Values": values} for name, values in wanted]} if wanted else {}
    try:
        found: list[Any] = describe(**named, **filters)[key]
    except ClientError as error:
        if error.response["Error"]["Code"] == unknown:
            return []
        raise
    return found


def _tables(aws: Aws, wanted: list[tuple[str, list[str]]]) -> list[Any]:
    filters = [{"Name": name, "Values": values} for name, values in wanted]
    found: list[Any] = aws.client("ec2").describe_route_tables(Filters=filters)["RouteTables"]
    return found


LOOK_UPS: dict[str, tuple[Keys, Any]] = {
    "aws:ec2/getVpc:getVpc": (known("id", "cidrBlock", "state", "tags", filters=_FILTERS), _vpc),
    "aws:ec2/getSubnet:getSubnet": (
        known("id", "vpcId", "availabilityZone", "cidrBlock", "state", "tags", filters=_FILTERS),
        _subnet,
    ),
    "aws:ec2/getRouteTable:getRouteTable": (
        known("subnetId", "vpcId", "routeTableId", "tags", filters=_FILTERS),
        _route_table,
    ),
    "aws:ec2/getVpcEndpoint:getVpcEndpoint": (
        known("id", "vpcId", "serviceName", "state", "vpcEndpointType", "tags", filters=_FILTERS),
        _endpoint,
    ),
}
