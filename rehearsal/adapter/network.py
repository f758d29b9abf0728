"""VPCs, subnets, gateways, Elastic IPs, routes and VPC endpoints."""

from typing import Any

from botocore.exceptions import ClientError

from rehearsal.adapter.aws_clients import wait_until
from rehearsal.adapter.errors import ignore_missing
from rehearsal.adapter.handler import CreateResult, Handler, HandlerCall, ReadResult, api_name, input_keys
from rehearsal.adapter.refresh import describe, select, tag_dict
from rehearsal.adapter.tagging import update_ec2_tags

_NAT_TIMEOUT_SECONDS = 120.0
_ENDPOINT_TIMEOUT_SECONDS = 600.0


class Vpc(Handler):
    """A VPC."""

    type = "aws:ec2/vpc:Vpc"
    keys = input_keys("cidrBlock", "enableDnsSupport", "enableDnsHostnames", "tags")
    replace_on_changes = frozenset({"cidrBlock"})

    def create(self, call: HandlerCall) -> CreateResult:
        """Create the VPC."""
        ec2 = call.aws.client("ec2")
        response = ec2.create_vpc(CidrBlock=call.inputs["cidrBlock"], **call.tag_specification("vpc"))
        vpc_id = response["Vpc"]["VpcId"]
        ec2.get_waiter("vpc_available").wait(VpcIds=[vpc_id], WaiterConfig={"Delay": 1, "MaxAttempts": 60})
        self._put_dns(call, vpc_id)
        return vpc_id, {}

    def update(self, call: HandlerCall) -> dict[str, Any]:
        """Update the VPC."""
        self._put_dns(call, call.id)
        update_ec2_tags(call)
        return {}

    def read(self, call: HandlerCall) -> ReadResult | None:
        """Return the current state, or None when it does not exist."""
        vpc = describe(call, "describe_vpcs", "Vpcs", "vpc-id")
        if vpc is None:
            return None
        dns = {
            key: call.aws.client("ec2").describe_vpc_attribute(VpcId=call.id, Attribute=key)[api_name(key)]["Value"]
            for key in ("enableDnsSupport", "enableDnsHostnames")
        }
        return ReadResult(inputs={"cidrBlock": vpc["CidrBlock"], **dns, "tags": tag_dict(vpc.get("Tags"))})

    def _put_dns(self, call: HandlerCall, vpc_id: str) -> None:
        # EC2 accepts one attribute per call.
        for key in ("enableDnsSupport", "enableDnsHostnames"):
            if key in call.inputs and call.has_changed(key):
                argument = {api_name(key): {"Value": call.inputs[key]}}
                call.aws.client("ec2").modify_vpc_attribute(VpcId=vpc_id, **argument)

    def delete(self, call: HandlerCall) -> None:
        """Delete the VPC."""
        call.aws.client("ec2").delete_vpc(VpcId=call.id)


class Subnet(Handler):
    """A subnet."""

    type = "aws:ec2/subnet:Subnet"
    keys = input_keys("vpcId", "cidrBlock", "availabilityZone", "mapPublicIpOnLaunch", "tags")
    replace_on_changes = frozenset({"vpcId", "cidrBlock", "availabilityZone"})

    def create(self, call: HandlerCall) -> CreateResult:
        """Create the subnet."""
        ec2 = call.aws.client("ec2")
        arguments = call.api_arguments(vpcId="VpcId", cidrBlock="CidrBlock", availabilityZone="AvailabilityZone")
        subnet = ec2.create_subnet(**arguments, **call.tag_specification("subnet"))["Subnet"]
        if "mapPublicIpOnLaunch" in call.inputs:
            self._put_public_addresses(call, subnet["SubnetId"])
        return subnet["SubnetId"], {"availabilityZone": subnet["AvailabilityZone"]}

    def update(self, call: HandlerCall) -> dict[str, Any]:
        """Update the subnet."""
        if call.has_changed("mapPublicIpOnLaunch"):
            self._put_public_addresses(call, call.id)
        update_ec2_tags(call)
        return {}

    def read(self, call: HandlerCall) -> ReadResult | None:
        """Return the current state, or None when it does not exist."""
        subnet = describe(call, "describe_subnets", "Subnets", "subnet-id")
        if subnet is None:
            return None
        inputs = select(
            subnet,
            vpcId="VpcId",
            cidrBlock="CidrBlock",
            availabilityZone="AvailabilityZone",
            mapPublicIpOnLaunch="MapPublicIpOnLaunch",
        )
        return ReadResult(inputs={**inputs, "tags": tag_dict(subnet.get("Tags"))})

    def _put_public_addresses(self, call: HandlerCall, subnet_id: str) -> None:
        public = {"Value": call.inputs.get("mapPublicIpOnLaunch", False)}
        call.aws.client("ec2").modify_subnet_attribute(SubnetId=subnet_id, MapPublicIpOnLaunch=public)

    def delete(self, call: HandlerCall) -> None:
        """Delete the subnet."""
        call.aws.client("ec2").delete_subnet(SubnetId=call.id)


class InternetGateway(Handler):
    """An internet gateway, attached to its VPC."""

    type = "aws:ec2/internetGateway:InternetGateway"
    keys = input_keys("vpcId", "tags")

    def create(self, call: HandlerCall) -> CreateResult:
        """Create the gateway and attach it to the VPC."""
        ec2 = call.aws.client("ec2")
        response = ec2.create_internet_gateway(**call.tag_specification("internet-gateway"))
        gateway_id = response["InternetGateway"]["InternetGatewayId"]
        try:
            ec2.attach_internet_gateway(InternetGatewayId=gateway_id, VpcId=call.inputs["vpcId"])
        except ClientError:
            ec2.delete_internet_gateway(InternetGatewayId=gateway_id)  # no state would record it
            raise
        return gateway_id, {}

    def update(self, call: HandlerCall) -> dict[str, Any]:
        """Attach the gateway to another VPC, and update its tags."""
        if call.has_changed("vpcId"):
            ec2 = call.aws.client("ec2")
            ec2.detach_internet_gateway(InternetGatewayId=call.id, VpcId=call.old_inputs["vpcId"])
            ec2.attach_internet_gateway(InternetGatewayId=call.id, VpcId=call.inputs["vpcId"])
        update_ec2_tags(call)
        return {}

    def read(self, call: HandlerCall) -> ReadResult | None:
        """Return the current state, or None when it does not exist."""
        gateway = describe(call, "describe_internet_gateways", "InternetGateways", "internet-gateway-id")
        if gateway is None:
            return None
        vpcs = [attachment["VpcId"] for attachment in gateway["Attachments"]]
        return ReadResult(inputs={"vpcId": vpcs[0] if vpcs else "", "tags": tag_dict(gateway.get("Tags"))})

    def delete(self, call: HandlerCall) -> None:
        """Detach the gateway from the VPC and delete it."""
        ec2 = call.aws.client("ec2")
        with ignore_missing():
            ec2.detach_internet_gateway(InternetGatewayId=call.id, VpcId=call.inputs["vpcId"])
        ec2.delete_internet_gateway(InternetGatewayId=call.id)


class Eip(Handler):
    """An Elastic IP address."""

    type = "aws:ec2/eip:Eip"
    keys = input_keys("domain", "tags")
    replace_on_changes = frozenset({"domain"})

    def create(self, call: HandlerCall) -> CreateResult:
        """Allocate the address."""
        response = call.aws.client("ec2").allocate_address(
            **call.api_arguments(domain="Domain"), **call.tag_specification("elastic-ip")
        )
        return response["AllocationId"], {"allocationId": response["AllocationId"], "publicIp": response["PublicIp"]}

    def update(self, call: HandlerCall) -> dict[str, Any]:
        """Update the tags."""
        update_ec2_tags(call)
        return {}

    def read(self, call: HandlerCall) -> ReadResult | None:
        """Return the current state, or None when it does not exist."""
        address = describe(call, "describe_addresses", "Addresses", "allocation-id")
        if address is None:
            return None
        return ReadResult(inputs={"domain": address["Domain"], "tags": tag_dict(address.get("Tags"))})

    def delete(self, call: HandlerCall) -> None:
        """Release the address."""
        call.aws.client("ec2").release_address(AllocationId=call.id)


class NatGateway(Handler):
    """A NAT gateway."""

    type = "aws:ec2/natGateway:NatGateway"
    keys = input_keys("allocationId", "subnetId", "connectivityType", "tags")
    replace_on_changes = frozenset({"allocationId", "subnetId", "connectivityType"})

    def create(self, call: HandlerCall) -> CreateResult:
        """Create the gateway and wait until it is available."""
        ec2 = call.aws.client("ec2")
        arguments = call.api_arguments(
            allocationId="AllocationId", subnetId="SubnetId", connectivityType="ConnectivityType"
        )
        response = ec2.create_nat_gateway(**arguments, **call.tag_specification("natgateway"))
        gateway_id = response["NatGateway"]["NatGatewayId"]
        wait_until(
            f"NAT gateway {gateway_id} is available",
            lambda: self._state(call, gateway_id) == "available",
            _NAT_TIMEOUT_SECONDS,
        )
        return gateway_id, {}

    def update(self, call: HandlerCall) -> dict[str, Any]:
        """Update the tags."""
        update_ec2_tags(call)
        return {}

    def read(self, call: HandlerCall) -> ReadResult | None:
        """Return the current state, or None when it does not exist."""
        gateway = describe(call, "describe_nat_gateways", "NatGateways", "nat-gateway-id")
        if gateway is None or gateway["State"] == "deleted":
            return None
        inputs = select(gateway, subnetId="SubnetId", connectivityType="ConnectivityType")
        addresses = select(gateway["NatGatewayAddresses"][0], allocationId="AllocationId")
        return ReadResult(inputs={**inputs, **addresses, "tags": tag_dict(gateway.get("Tags"))})

    def delete(self, call: HandlerCall) -> None:
        """Delete the gateway and wait until it is deleted."""
        call.aws.client("ec2").delete_nat_gateway(NatGatewayId=call.id)
        wait_until(
            f"NAT gateway {call.id} is deleted",
            lambda: self._state(call, call.id) in ("deleted", None),
            _NAT_TIMEOUT_SECONDS,
        )

    def _state(self, call: HandlerCall, gateway_id: str) -> str | None:
        try:
            gateways = call.aws.client("ec2").describe_nat_gateways(NatGatewayIds=[gateway_id])["NatGateways"]
        except ClientError as error:
            if error.response["Error"]["Code"] == "NatGatewayNotFound":
                return None
            raise
        return gateways[0]["State"] if gateways else None


class RouteTable(Handler):
    """A route table."""

    type = "aws:ec2/routeTable:RouteTable"
    keys = input_keys("vpcId", "tags")
    replace_on_changes = frozenset({"vpcId"})

    def create(self, call: HandlerCall) -> CreateResult:
        """Create the route table."""
        response = call.aws.client("ec2").create_route_table(
            VpcId=call.inputs["vpcId"], **call.tag_specification("route-table")
        )
        return response["RouteTable"]["RouteTableId"], {}

    def update(self, call: HandlerCall) -> dict[str, Any]:
        """Update the tags."""
        update_ec2_tags(call)
        return {}

    def read(self, call: HandlerCall) -> ReadResult | None:
        """Return the current state, or None when it does not exist."""
        table = describe(call, "describe_route_tables", "RouteTables", "route-table-id")
        if table is None:
            return None
        return ReadResult(inputs={"vpcId": table["VpcId"], "tags": tag_dict(table.get("Tags"))})

    def delete(self, call: HandlerCall) -> None:
        """Delete the route table."""
        call.aws.client("ec2").delete_route_table(RouteTableId=call.id)


class RouteTableAssociation(Handler):
    """The association of a subnet with a route table."""

    type = "aws:ec2/routeTableAssociation:RouteTableAssociation"
    keys = input_keys("subnetId", "routeTableId")
    replace_on_changes = frozenset({"subnetId"})

    def create(self, call: HandlerCall) -> CreateResult:
        """Associate the subnet with the route table."""
        arguments = call.api_arguments(subnetId="SubnetId", routeTableId="RouteTableId")
        return call.aws.client("ec2").associate_route_table(**arguments)["AssociationId"], {}

    def update(self, call: HandlerCall) -> dict[str, Any]:
        """Raise NotImplementedError: no update is supported."""
        reason = "EC2 returns a new association id, which an update cannot report to the engine"
        raise NotImplementedError(
            f"{call.type} {call.name}: the adapter does not support changes of routeTableId: {reason}"
        )

    def read(self, call: HandlerCall) -> ReadResult | None:
        """Return the current state, or None when it does not exist."""
        table = describe(call, "describe_route_tables", "RouteTables", "association.route-table-association-id")
        if table is None:
            return None
        (association,) = (each for each in table["Associations"] if each["RouteTableAssociationId"] == call.id)
        return ReadResult(inputs=select(association, subnetId="SubnetId", routeTableId="RouteTableId"))

    def delete(self, call: HandlerCall) -> None:
        """Remove the association."""
        call.aws.client("ec2").disassociate_route_table(AssociationId=call.id)


class Route(Handler):
    """A route of a route table."""

    type = "aws:ec2/route:Route"
    keys = input_keys("routeTableId", "destinationCidrBlock", "gatewayId", "natGatewayId")
    replace_on_changes = frozenset({"routeTableId", "destinationCidrBlock"})

    def create(self, call: HandlerCall) -> CreateResult:
        """Create the route."""
        arguments = self._arguments(call)
        call.aws.client("ec2").create_route(**arguments)
        return f"r-{arguments['RouteTableId']}-{arguments['DestinationCidrBlock']}", {}

    def update(self, call: HandlerCall) -> dict[str, Any]:
        """Replace the target of the route."""
        call.aws.client("ec2").replace_route(**self._arguments(call))
        return {}

    def _arguments(self, call: HandlerCall) -> dict[str, Any]:
        return call.api_arguments(
            routeTableId="RouteTableId",
            destinationCidrBlock="DestinationCidrBlock",
            gatewayId="GatewayId",
            natGatewayId="NatGatewayId",
        )

    def read(self, call: HandlerCall) -> ReadResult | None:
        """Return the current state, or None when it does not exist."""
        destination, table_id = (self.required_input(call, key) for key in ("destinationCidrBlock", "routeTableId"))
        table = describe(call, "describe_route_tables", "RouteTables", "route-table-id", table_id)
        routes = table["Routes"] if table else []
        route = next((each for each in routes if each.get("DestinationCidrBlock") == destination), None)
        if route is None:
            return None
        targets = select(route, gatewayId="GatewayId", natGatewayId="NatGatewayId")
        return ReadResult(inputs={"routeTableId": table_id, "destinationCidrBlock": destination, **targets})

    def delete(self, call: HandlerCall) -> None:
        """Delete the route."""
        arguments = call.api_arguments(routeTableId="RouteTableId", destinationCidrBlock="DestinationCidrBlock")
        call.aws.client("ec2").delete_route(**arguments)


class VpcEndpoint(Handler):
    """A gateway or interface endpoint of a VPC."""

    type = "aws:ec2/vpcEndpoint:VpcEndpoint"
    keys = input_keys(
        "vpcId",
        "vpcEndpointType",
        "serviceName",
        "routeTableIds",
        "subnetIds",
        "securityGroupIds",
        "privateDnsEnabled",
        "policy",
        "tags",
    )
    replace_on_changes = frozenset({"vpcId", "vpcEndpointType", "serviceName"})

    def create(self, call: HandlerCall) -> CreateResult:
        """Create the endpoint and wait until it is available."""
        arguments = call.api_arguments(
            vpcId="VpcId",
            vpcEndpointType="VpcEndpointType",
            serviceName="ServiceName",
            routeTableIds="RouteTableIds",
            subnetIds="SubnetIds",
            securityGroupIds="SecurityGroupIds",
            privateDnsEnabled="PrivateDnsEnabled",
            policy="PolicyDocument",
        )
        response = call.aws.client("ec2").create_vpc_endpoint(**arguments, **call.tag_specification("vpc-endpoint"))
        endpoint_id = response["VpcEndpoint"]["VpcEndpointId"]
        wait_until(
            f"endpoint {endpoint_id} is available",
            lambda: self._state(call, endpoint_id) == "available",
            _ENDPOINT_TIMEOUT_SECONDS,
        )
        return endpoint_id, {}

    def update(self, call: HandlerCall) -> dict[str, Any]:
        """Update the route tables, subnets, security groups, policy and tags."""
        if call.has_changed("privateDnsEnabled"):
            raise NotImplementedError(
                f"{call.type} {call.name}: the adapter does not support changes of privateDnsEnabled"
            )
        changed: dict[str, Any] = {}
        for key in ("routeTableIds", "subnetIds", "securityGroupIds"):
            before, after = (set(inputs.get(key, [])) for inputs in (call.old_inputs, call.inputs))
            changed |= {
                f"Add{api_name(key)}": sorted(after - before),
                f"Remove{api_name(key)}": sorted(before - after),
            }
        if call.has_changed("policy"):
            changed |= {"PolicyDocument": call.inputs["policy"]} if "policy" in call.inputs else {"ResetPolicy": True}
        if any(changed.values()):
            call.aws.client("ec2").modify_vpc_endpoint(VpcEndpointId=call.id, **changed)
        update_ec2_tags(call)
        return {}

    def read(self, call: HandlerCall) -> ReadResult | None:
        """Return the current state, or None when it does not exist."""
        endpoint = describe(call, "describe_vpc_endpoints", "VpcEndpoints", "vpc-endpoint-id")
        if endpoint is None or endpoint["State"].lower() == "deleted":
            return None
        inputs = select(
            endpoint,
            vpcId="VpcId",
            vpcEndpointType="VpcEndpointType",
            serviceName="ServiceName",
            routeTableIds="RouteTableIds",
            subnetIds="SubnetIds",
            privateDnsEnabled="PrivateDnsEnabled",
            policy="PolicyDocument",
        )
        groups = [group["GroupId"] for group in endpoint.get("Groups", [])]
        return ReadResult(inputs={**inputs, "securityGroupIds": groups, "tags": tag_dict(endpoint.get("Tags"))})

    def delete(self, call: HandlerCall) -> None:
        """Delete the endpoint and wait until it is deleted."""
        call.aws.client("ec2").delete_vpc_endpoints(VpcEndpointIds=[call.id])
        wait_until(
            f"endpoint {call.id} is deleted", lambda: self._state(call, call.id) is None, _ENDPOINT_TIMEOUT_SECONDS
        )

    def _state(self, call: HandlerCall, endpoint_id: str) -> str | None:
        by_id = [{"Name": "vpc-endpoint-id", "Values": [endpoint_id]}]
        endpoints = call.aws.client("ec2").describe_vpc_endpoints(Filters=by_id)["VpcEndpoints"]
        return endpoints[0]["State"].lower() if endpoints else None


HANDLERS = (
    Vpc(),
    Subnet(),
    InternetGateway(),
    Eip(),
    NatGateway(),
    RouteTable(),
    RouteTableAssociation(),
    Route(),
    VpcEndpoint(),
)
