"""Lookups of an existing network: VPC, subnet, route table and endpoint."""

from collections.abc import Mapping
from typing import Any

from botocore.exceptions import ClientError

from rehearsal.adapter.aws_clients import AwsClients
from rehearsal.adapter.handler import InputKeys, input_keys
from rehearsal.adapter.lookup_results import LookupResult, ec2_filters, missing_route_table_error, single_match, tags_of

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


def _vpc(aws: AwsClients, arguments: Mapping[str, Any]) -> LookupResult:
    ec2, vpc_id = aws.client("ec2"), arguments["id"]
    vpc = single_match(_describe(ec2.describe_vpcs, "Vpcs", "InvalidVpcID.NotFound", VpcIds=[vpc_id]), "EC2 VPC")
    dns = {
        key: ec2.describe_vpc_attribute(VpcId=vpc_id, Attribute=key)[f"E{key[1:]}"]["Value"]
        for key in ("enableDnsSupport", "enableDnsHostnames")
    }
    main_tables = _route_tables(
        aws, [{"Name": "vpc-id", "Values": [vpc_id]}, {"Name": "association.main", "Values": ["true"]}]
    )
    return {
        "id": vpc_id,
        "arn": f"arn:aws:ec2:{aws.region}:{vpc['OwnerId']}:vpc/{vpc_id}",
        "cidrBlock": vpc["CidrBlock"],
        "cidrBlockAssociations": [
            {
                "associationId": association["AssociationId"],
                "cidrBlock": association["CidrBlock"],
                "state": "associated",
            }
            for association in vpc.get("CidrBlockAssociationSet", [])
        ],
        "default": vpc["IsDefault"],
        "dhcpOptionsId": vpc["DhcpOptionsId"],
        "instanceTenancy": vpc["InstanceTenancy"],
        "mainRouteTableId": main_tables[0]["RouteTableId"] if main_tables else "",
        "ownerId": vpc["OwnerId"],
        "state": vpc["State"],
        "tags": tags_of(vpc),
        **dns,
    }


def _subnet(aws: AwsClients, arguments: Mapping[str, Any]) -> LookupResult:
    describe = aws.client("ec2").describe_subnets
    subnet = single_match(
        _describe(describe, "Subnets", "InvalidSubnetID.NotFound", SubnetIds=[arguments["id"]]), "EC2 Subnet"
    )
    return {
        "id": subnet["SubnetId"],
        "arn": subnet["SubnetArn"],
        "availabilityZone": subnet["AvailabilityZone"],
        "availabilityZoneId": subnet["AvailabilityZoneId"],
        "availableIpAddressCount": subnet["AvailableIpAddressCount"],
        "cidrBlock": subnet["CidrBlock"],
        "defaultForAz": subnet["DefaultForAz"],
        "mapPublicIpOnLaunch": subnet["MapPublicIpOnLaunch"],
        "ownerId": subnet["OwnerId"],
        "state": subnet["State"],
        "tags": tags_of(subnet),
        "vpcId": subnet["VpcId"],
    }


def _route_table(aws: AwsClients, arguments: Mapping[str, Any]) -> LookupResult:
    tables = _route_tables(aws, ec2_filters(arguments, subnetId="association.subnet-id", vpcId="vpc-id"))
    if not tables:
        raise missing_route_table_error()
    table = single_match(tables, "Route Table")
    return {
        "id": table["RouteTableId"],
        "arn": f"arn:aws:ec2:{aws.region}:{table['OwnerId']}:route-table/{table['RouteTableId']}",
        "associations": [
            {
                "main": association.get("Main", False),
                "routeTableAssociationId": association["RouteTableAssociationId"],
                "routeTableId": association["RouteTableId"],
                "subnetId": association.get("SubnetId", ""),
                "gatewayId": association.get("GatewayId", ""),
            }
            for association in table["Associations"]
        ],
        "gatewayId": "",
        "ownerId": table["OwnerId"],
        "routeTableId": table["RouteTableId"],
        "routes": [result for route in table["Routes"] if (result := _route(route)) is not None],
        "subnetId": arguments.get("subnetId", ""),
        "tags": tags_of(table),
        "vpcId": table["VpcId"],
    }


def _route(route: Mapping[str, Any]) -> LookupResult | None:
    """Return a route, or None for those that the provider omits: local, propagated and gateway endpoints' routes."""
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
        **{result_key: route.get(api_key) or "" for api_key, result_key in _ROUTE_TARGETS.items()},
    }


def _endpoint(aws: AwsClients, arguments: Mapping[str, Any]) -> LookupResult:
    filters = ec2_filters(
        arguments,
        vpcId="vpc-id",
        serviceName="service-name",
        state="vpc-endpoint-state",
        vpcEndpointType="vpc-endpoint-type",
    )
    endpoints = aws.client("ec2").describe_vpc_endpoints(Filters=filters)["VpcEndpoints"]
    endpoint = single_match(endpoints, "EC2 VPC Endpoint")
    endpoint_id, owner = endpoint["VpcEndpointId"], endpoint["OwnerId"]
    return {
        "id": endpoint_id,
        "arn": f"arn:aws:ec2:{aws.region}:{owner}:vpc-endpoint/{endpoint_id}",
        "networkInterfaceIds": endpoint.get("NetworkInterfaceIds", []),
        "ownerId": owner,
        "privateDnsEnabled": endpoint.get("PrivateDnsEnabled", False),
        "requesterManaged": endpoint.get("RequesterManaged", False),
        "routeTableIds": endpoint.get("RouteTableIds", []),
        "securityGroupIds": [group["GroupId"] for group in endpoint.get("Groups", [])],
        "serviceName": endpoint["ServiceName"],
        "state": endpoint["State"],
        "subnetIds": endpoint.get("SubnetIds", []),
        "tags": tags_of(endpoint),
        "vpcEndpointType": endpoint["VpcEndpointType"],
        "vpcId": endpoint["VpcId"],
    }


def _describe(describe: Any, key: str, missing_code: str, **arguments: list[str]) -> list[Any]:
    """Return the described resources, or none when EC2 does not know the id."""
    try:
        resources: list[Any] = describe(**arguments)[key]
    except ClientError as error:
        if error.response["Error"]["Code"] == missing_code:
            return []
        raise
    return resources


def _route_tables(aws: AwsClients, filters: list[dict[str, Any]]) -> list[Any]:
    tables: list[Any] = aws.client("ec2").describe_route_tables(Filters=filters)["RouteTables"]
    return tables


LOOKUPS: dict[str, tuple[InputKeys, Any]] = {
    "aws:ec2/getVpc:getVpc": (input_keys("id"), _vpc),
    "aws:ec2/getSubnet:getSubnet": (input_keys("id"), _subnet),
    "aws:ec2/getRouteTable:getRouteTable": (
        input_keys("subnetId", "vpcId", filters=input_keys("name", "values")),
        _route_table,
    ),
    "aws:ec2/getVpcEndpoint:getVpcEndpoint": (
        input_keys("vpcId", "serviceName", "state", "vpcEndpointType"),
        _endpoint,
    ),
}
