"""Look-ups of what a stack says exists: network, reservation, image; and of the quotas that bound it.

What is not there is told in the words of the provider, whose look-ups fail rather than answer with nothing. Source:
https://github.com/hashicorp/terraform-provider-aws, internal/tfresource/not_found_error.go and the data sources.
"""

from collections.abc import Mapping
from typing import Any

from botocore.exceptions import ClientError

from rehearsal.adapter.errors import Refused
from rehearsal.adapter.handler import Keys, known, tag_list
from rehearsal.adapter.session import Aws

Answer = dict[str, Any]
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


def one_of(found: list[Any], kind: str) -> Any:
    """The only one. Raises Refused as the provider does when there is none, or several."""
    if not found:
        raise Refused(f"no matching {kind} found")
    if len(found) > 1:
        raise Refused(f"multiple {kind}s matched; use additional constraints to reduce matches to a single {kind}")
    return found[0]


def no_resource(type_name: str, identifier: str) -> Refused:
    """What the provider says of a resource that Cloud Control does not find."""
    return Refused(f"reading Cloud Control API ({type_name}) Resource ({identifier}): couldn't find resource")


def no_route_table() -> Refused:
    """What the provider says where no route table matches."""
    return Refused("query returned no results. Please change your search criteria and try again")


def no_image() -> Refused:
    """What the provider says where no image matches."""
    return Refused("Your query returned no results. Please change your search criteria and try again.")


def _resource(aws: Aws, given: Mapping[str, Any]) -> Answer:
    try:
        answer = aws.client("cloudcontrol").get_resource(TypeName=given["typeName"], Identifier=given["identifier"])
    except ClientError as error:
        if error.response["Error"]["Code"] == "ResourceNotFoundException":
            raise no_resource(given["typeName"], given["identifier"]) from error
        raise
    found = answer["ResourceDescription"]
    return {"id": found["Identifier"], "properties": found["Properties"], **given}


def _quota(aws: Aws, given: Mapping[str, Any]) -> Answer:
    """The applied value; where none was ever applied, AWS's default."""
    quotas, named = aws.client("service-quotas"), {"ServiceCode": given["serviceCode"], "QuotaCode": given["quotaCode"]}
    default = quotas.get_aws_default_service_quota(**named)["Quota"]
    applied = default
    try:
        applied = quotas.get_service_quota(**named)["Quota"]
    except ClientError as error:
        if error.response["Error"]["Code"] != "NoSuchResourceException":
            raise
    return {
        "id": default["QuotaArn"],
        "arn": applied["QuotaArn"],
        "adjustable": default["Adjustable"],
        "defaultValue": default["Value"],
        "globalQuota": default["GlobalQuota"],
        "quotaName": default["QuotaName"],
        "serviceName": default["ServiceName"],
        "usageMetrics": [],
        "value": applied["Value"],
        **given,
    }


def _vpc(aws: Aws, given: Mapping[str, Any]) -> Answer:
    ec2, wanted = aws.client("ec2"), _filters(given, cidrBlock="cidr", state="state")
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
        "tags": _tags(found),
        **dns,
    }


def _subnet(aws: Aws, given: Mapping[str, Any]) -> Answer:
    describe = aws.client("ec2").describe_subnets
    wanted = _filters(given, vpcId="vpc-id", availabilityZone="availability-zone", cidrBlock="cidr", state="state")
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
        "tags": _tags(found),
        "vpcId": found["VpcId"],
    }


def _route_table(aws: Aws, given: Mapping[str, Any]) -> Answer:
    tables = _tables(
        aws, _filters(given, subnetId="association.subnet-id", vpcId="vpc-id", routeTableId="route-table-id")
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
        "tags": _tags(found),
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
    wanted = _filters(
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
        "tags": _tags(found),
        "vpcEndpointType": found["VpcEndpointType"],
        "vpcId": found["VpcId"],
    }


def _image(aws: Aws, given: Mapping[str, Any]) -> Answer:
    wanted = [{"Name": name, "Values": values} for name, values in _filters(given)]
    owners = {"Owners": given["owners"]} if given.get("owners") else {}
    images = aws.client("ec2").describe_images(Filters=wanted, **owners)["Images"]
    if not images:
        raise no_image()
    if len(images) > 1 and not given.get("mostRecent"):
        raise Refused(
            "Your query returned more than one result. Please try a more specific search criteria, or set "
            "`most_recent` attribute to true."
        )
    found = max(images, key=lambda image: image["CreationDate"])
    return {
        "id": found["ImageId"],
        "imageId": found["ImageId"],
        "architecture": found["Architecture"],
        "arn": f"arn:aws:ec2:{aws.region}::image/{found['ImageId']}",
        "blockDeviceMappings": [
            {
                "deviceName": each["DeviceName"],
                "noDevice": "",
                "virtualName": each.get("VirtualName", ""),
                "ebs": {f"{key[0].lower()}{key[1:]}": _text(value) for key, value in each.get("Ebs", {}).items()},
            }
            for each in found["BlockDeviceMappings"]
        ],
        "creationDate": found["CreationDate"],
        "name": found["Name"],
        "ownerId": found["OwnerId"],
        "platformDetails": found.get("PlatformDetails", ""),
        "public": found["Public"],
        "rootDeviceName": found["RootDeviceName"],
        "rootDeviceType": found["RootDeviceType"],
        "state": found["State"],
        "virtualizationType": found["VirtualizationType"],
        **given,
    }


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _tags(found: Mapping[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in found.get("Tags", [])}


def _filters(given: Mapping[str, Any], **names: str) -> list[tuple[str, list[str]]]:
    """What a look-up asks for, as filters of EC2: its own keys under EC2's names, its filters, its tags."""
    own = [(name, [given[key]]) for key, name in names.items() if given.get(key)]
    own += [(item["name"], item["values"]) for item in given.get("filters", [])]
    return own + [(f"tag:{tag['Key']}", [tag["Value"]]) for tag in tag_list(given.get("tags"))]


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
    "aws:cloudcontrol/getResource:getResource": (known("typeName", "identifier"), _resource),
    "aws:servicequotas/getServiceQuota:getServiceQuota": (known("serviceCode", "quotaCode"), _quota),
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
    "aws:ec2/getAmi:getAmi": (known("owners", "mostRecent", "tags", filters=_FILTERS), _image),
}
