"""VPC, subnets, gateways, routes and endpoints."""

from typing import Any

from botocore.exceptions import ClientError

from rehearsal.adapter.errors import gone_already
from rehearsal.adapter.handler import Call, Handler, Made, api_case, known
from rehearsal.adapter.session import wait_until
from rehearsal.adapter.tagging import retag

_NAT_SECONDS = 120.0
_ENDPOINT_SECONDS = 600.0


class Vpc(Handler):
    type = "aws:ec2/vpc:Vpc"
    keys = known("cidrBlock", "enableDnsSupport", "enableDnsHostnames", "tags")
    replaces = frozenset({"cidrBlock"})

    def create(self, call: Call) -> Made:
        ec2 = call.aws.client("ec2")
        made = ec2.create_vpc(CidrBlock=call.inputs["cidrBlock"], **call.tag_specification("vpc"))["Vpc"]["VpcId"]
        ec2.get_waiter("vpc_available").wait(VpcIds=[made], WaiterConfig={"Delay": 1, "MaxAttempts": 60})
        self._put_dns(call, made)
        return made, {}

    def update(self, call: Call) -> dict[str, Any]:
        self._put_dns(call, call.id)
        retag(call)
        return {}

    def _put_dns(self, call: Call, vpc: str) -> None:
        # One attribute a call: EC2 refuses two at once.
        for key in ("enableDnsSupport", "enableDnsHostnames"):
            if key in call.inputs and call.changed(key):
                argument = {api_case(key): {"Value": call.inputs[key]}}
                call.aws.client("ec2").modify_vpc_attribute(VpcId=vpc, **argument)

    def delete(self, call: Call) -> None:
        call.aws.client("ec2").delete_vpc(VpcId=call.id)


class Subnet(Handler):
    type = "aws:ec2/subnet:Subnet"
    keys = known("vpcId", "cidrBlock", "availabilityZone", "mapPublicIpOnLaunch", "tags")
    replaces = frozenset({"vpcId", "cidrBlock", "availabilityZone"})

    def create(self, call: Call) -> Made:
        ec2 = call.aws.client("ec2")
        wanted = call.only(vpcId="VpcId", cidrBlock="CidrBlock", availabilityZone="AvailabilityZone")
        made = ec2.create_subnet(**wanted, **call.tag_specification("subnet"))["Subnet"]
        if "mapPublicIpOnLaunch" in call.inputs:
            self._put_public(call, made["SubnetId"])
        return made["SubnetId"], {"availabilityZone": made["AvailabilityZone"]}

    def update(self, call: Call) -> dict[str, Any]:
        if call.changed("mapPublicIpOnLaunch"):
            self._put_public(call, call.id)
        retag(call)
        return {}

    def _put_public(self, call: Call, subnet: str) -> None:
        public = {"Value": call.inputs.get("mapPublicIpOnLaunch", False)}
        call.aws.client("ec2").modify_subnet_attribute(SubnetId=subnet, MapPublicIpOnLaunch=public)

    def delete(self, call: Call) -> None:
        call.aws.client("ec2").delete_subnet(SubnetId=call.id)


class InternetGateway(Handler):
    type = "aws:ec2/internetGateway:InternetGateway"
    keys = known("vpcId", "tags")

    def create(self, call: Call) -> Made:
        ec2 = call.aws.client("ec2")
        answer = ec2.create_internet_gateway(**call.tag_specification("internet-gateway"))
        made = answer["InternetGateway"]["InternetGatewayId"]
        try:
            ec2.attach_internet_gateway(InternetGatewayId=made, VpcId=call.inputs["vpcId"])
        except ClientError:
            ec2.delete_internet_gateway(InternetGatewayId=made)  # nobody would know of it
            raise
        return made, {}

    def update(self, call: Call) -> dict[str, Any]:
        if call.changed("vpcId"):
            ec2 = call.aws.client("ec2")
            ec2.detach_internet_gateway(InternetGatewayId=call.id, VpcId=call.olds["vpcId"])
            ec2.attach_internet_gateway(InternetGatewayId=call.id, VpcId=call.inputs["vpcId"])
        retag(call)
        return {}

    def delete(self, call: Call) -> None:
        ec2 = call.aws.client("ec2")
        with gone_already():
            ec2.detach_internet_gateway(InternetGatewayId=call.id, VpcId=call.inputs["vpcId"])
        ec2.delete_internet_gateway(InternetGatewayId=call.id)


class Eip(Handler):
    type = "aws:ec2/eip:Eip"
    keys = known("domain", "tags")
    replaces = frozenset({"domain"})

    def create(self, call: Call) -> Made:
        answer = call.aws.client("ec2").allocate_address(
            **call.only(domain="Domain"), **call.tag_specification("elastic-ip")
        )
        return answer["AllocationId"], {"allocationId": answer["AllocationId"], "publicIp": answer["PublicIp"]}

    def update(self, call: Call) -> dict[str, Any]:
        retag(call)
        return {}

    def delete(self, call: Call) -> None:
        call.aws.client("ec2").release_address(AllocationId=call.id)


class NatGateway(Handler):
    type = "aws:ec2/natGateway:NatGateway"
    keys = known("allocationId", "subnetId", "connectivityType", "tags")
    replaces = frozenset({"allocationId", "subnetId", "connectivityType"})

    def create(self, call: Call) -> Made:
        ec2 = call.aws.client("ec2")
        wanted = call.only(allocationId="AllocationId", subnetId="SubnetId", connectivityType="ConnectivityType")
        made = ec2.create_nat_gateway(**wanted, **call.tag_specification("natgateway"))["NatGateway"]["NatGatewayId"]
        wait_until(f"NAT gateway {made} is available", lambda: self._state(call, made) == "available", _NAT_SECONDS)
        return made, {}

    def update(self, call: Call) -> dict[str, Any]:
        retag(call)
        return {}

    def delete(self, call: Call) -> None:
        call.aws.client("ec2").delete_nat_gateway(NatGatewayId=call.id)
        gone = ("deleted", None)
        wait_until(f"NAT gateway {call.id} is deleted", lambda: self._state(call, call.id) in gone, _NAT_SECONDS)

    def _state(self, call: Call, gateway: str) -> str | None:
        try:
            found = call.aws.client("ec2").describe_nat_gateways(NatGatewayIds=[gateway])["NatGateways"]
        except ClientError as error:
            if error.response["Error"]["Code"] == "NatGatewayNotFound":
                return None
            raise
        return found[0]["State"] if found else None


class RouteTable(Handler):
    type = "aws:ec2/routeTable:RouteTable"
    keys = known("vpcId", "tags")
    replaces = frozenset({"vpcId"})

    def create(self, call: Call) -> Made:
        answer = call.aws.client("ec2").create_route_table(
            VpcId=call.inputs["vpcId"], **call.tag_specification("route-table")
        )
        return answer["RouteTable"]["RouteTableId"], {}

    def update(self, call: Call) -> dict[str, Any]:
        retag(call)
        return {}

    def delete(self, call: Call) -> None:
        call.aws.client("ec2").delete_route_table(RouteTableId=call.id)


class RouteTableAssociation(Handler):
    type = "aws:ec2/routeTableAssociation:RouteTableAssociation"
    keys = known("subnetId", "routeTableId")
    replaces = frozenset({"subnetId"})

    def create(self, call: Call) -> Made:
        wanted = call.only(subnetId="SubnetId", routeTableId="RouteTableId")
        return call.aws.client("ec2").associate_route_table(**wanted)["AssociationId"], {}

    def update(self, call: Call) -> dict[str, Any]:
        why = "EC2 answers with another id, which an update can't bring to the engine"
        raise NotImplementedError(f"{call.type} {call.name}: the adapter can't change routeTableId: {why}")

    def delete(self, call: Call) -> None:
        call.aws.client("ec2").disassociate_route_table(AssociationId=call.id)


class Route(Handler):
    type = "aws:ec2/route:Route"
    keys = known("routeTableId", "destinationCidrBlock", "gatewayId", "natGatewayId")
    replaces = frozenset({"routeTableId", "destinationCidrBlock"})

    def create(self, call: Call) -> Made:
        wanted = self._wanted(call)
        call.aws.client("ec2").create_route(**wanted)
        return f"r-{wanted['RouteTableId']}-{wanted['DestinationCidrBlock']}", {}

    def update(self, call: Call) -> dict[str, Any]:
        call.aws.client("ec2").replace_route(**self._wanted(call))
        return {}

    def _wanted(self, call: Call) -> dict[str, Any]:
        return call.only(
            routeTableId="RouteTableId",
            destinationCidrBlock="DestinationCidrBlock",
            gatewayId="GatewayId",
            natGatewayId="NatGatewayId",
        )

    def delete(self, call: Call) -> None:
        wanted = call.only(routeTableId="RouteTableId", destinationCidrBlock="DestinationCidrBlock")
        call.aws.client("ec2").delete_route(**wanted)


class VpcEndpoint(Handler):
    type = "aws:ec2/vpcEndpoint:VpcEndpoint"
    keys = known(
        "vpcId",
        "vpcEndpointType",
        "serviceName",
        "routeTableIds",
        "subnetIds",
        "securityGroupIds",
        "privateDnsEnabled",
        "tags",
    )
    replaces = frozenset({"vpcId", "vpcEndpointType", "serviceName"})

    def create(self, call: Call) -> Made:
        wanted = call.only(
            vpcId="VpcId",
            vpcEndpointType="VpcEndpointType",
            serviceName="ServiceName",
            routeTableIds="RouteTableIds",
            subnetIds="SubnetIds",
            securityGroupIds="SecurityGroupIds",
            privateDnsEnabled="PrivateDnsEnabled",
        )
        answer = call.aws.client("ec2").create_vpc_endpoint(**wanted, **call.tag_specification("vpc-endpoint"))
        made = answer["VpcEndpoint"]["VpcEndpointId"]
        wait_until(f"endpoint {made} is available", lambda: self._state(call, made) == "available", _ENDPOINT_SECONDS)
        return made, {}

    def update(self, call: Call) -> dict[str, Any]:
        if call.changed("privateDnsEnabled"):
            raise NotImplementedError(f"{call.type} {call.name}: the adapter can't change privateDnsEnabled")
        changed: dict[str, list[str]] = {}
        for key in ("routeTableIds", "subnetIds", "securityGroupIds"):
            olds, news = (set(given.get(key, [])) for given in (call.olds, call.inputs))
            changed |= {f"Add{api_case(key)}": sorted(news - olds), f"Remove{api_case(key)}": sorted(olds - news)}
        if any(changed.values()):
            call.aws.client("ec2").modify_vpc_endpoint(VpcEndpointId=call.id, **changed)
        retag(call)
        return {}

    def delete(self, call: Call) -> None:
        call.aws.client("ec2").delete_vpc_endpoints(VpcEndpointIds=[call.id])
        wait_until(f"endpoint {call.id} is gone", lambda: self._state(call, call.id) is None, _ENDPOINT_SECONDS)

    def _state(self, call: Call, endpoint: str) -> str | None:
        by_id = [{"Name": "vpc-endpoint-id", "Values": [endpoint]}]
        found = call.aws.client("ec2").describe_vpc_endpoints(Filters=by_id)["VpcEndpoints"]
        return found[0]["State"].lower() if found else None


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
