"""A static account: creates nothing and returns constants for lookups, so the program runs without an AWS server."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from infra.lookups.subnet import HEAD_SUBNET_ROLE
from rehearsal.adapter.account import ResourceRequest, handlers, select_handler
from rehearsal.adapter.command import Command
from rehearsal.adapter.errors import RequestFailedError, UnsupportedTypeError
from rehearsal.adapter.handler import CreateResult, check_input_keys
from rehearsal.adapter.instance_types import read_instance_types, to_lookup_result
from rehearsal.adapter.lookup_results import missing_budget_error, missing_object_error
from rehearsal.adapter.lookups import LOOKUPS
from rehearsal.adapter.static_ec2 import (
    RESERVATION,
    VPC,
    StaticEc2,
    StaticNetwork,
    default_network,
    reservation_properties,
)
from trainyard.aws import tags

ACCOUNT = "123456789012"
_SCALING = f"arn:aws:iam::{ACCOUNT}:role/aws-service-role/autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling"
DEFAULT_KEY_POLICY = {"Statement": [{"Effect": "Allow", "Principal": {"AWS": _SCALING}, "Action": "kms:*"}]}


class StaticAccount:
    """An account without a server. It checks types and inputs as the emulated account does.

    `retained_bucket`, `retained_key_id`: the data bucket and the KMS key that an earlier `up` left; `bucket_key`: its
    setting storage.kms_key, as a tag of the bucket.
    `cluster_exists`: whether the stack's cluster still exists. `head_subnet`: the subnet of its head, in `networks`.
    `held_capacity`: the reservation of `trainyard reserve`, one of `reservations`.
    `reservations`: properties of AWS::EC2::CapacityReservation by id. `quotas`: values by quota code; other quotas have
    a large value. `networks`: the existing VPCs by id. `instance_type_zones`: the Availability Zones that offer an
    instance type, by its name; other types are offered in every zone. `bucket_regions`: the region of each existing
    bucket. `key_states`: the state of each existing KMS key by ARN. `key_policy`: the policy of every key.
    `budgets_denied`: whether the caller may not read budgets. `objects`: the content of each S3 object by key,
    `object_properties`: further results of the lookup of each, such as sseKmsKeyId.
    A default that is valid for every stack replaces each argument that is None.
    """

    def __init__(
        self,
        region: str = "us-east-1",
        retained_bucket: str | None = None,
        retained_key_id: str | None = None,
        *,
        bucket_key: str | None = None,
        cluster_exists: bool = False,
        head_subnet: str | None = None,
        held_capacity: str | None = None,
        reservations: Mapping[str, Mapping[str, Any]] | None = None,
        quotas: Mapping[str, float] | None = None,
        networks: Mapping[str, StaticNetwork] | None = None,
        instance_type_zones: Mapping[str, Sequence[str]] | None = None,
        bucket_regions: Mapping[str, str] | None = None,
        key_states: Mapping[str, str] | None = None,
        key_policy: Mapping[str, Any] | None = None,
        budgets_denied: bool = False,
        objects: Mapping[str, str] | None = None,
        object_properties: Mapping[str, str] | None = None,
    ) -> None:
        self.region = region
        self._arns_by_role = {
            tags.DATA_BUCKET: f"arn:aws:s3:::{retained_bucket}" if retained_bucket else None,
            tags.STAGING_BUCKET: "arn:aws:s3:::trainyard-staging-0000000" if cluster_exists else None,
            HEAD_SUBNET_ROLE: f"arn:aws:ec2:{region}:{ACCOUNT}:subnet/{head_subnet}" if head_subnet else None,
            tags.HELD_CAPACITY: f"arn:aws:ec2:{region}:{ACCOUNT}:capacity-reservation/{held_capacity}"
            if held_capacity
            else None,
            tags.STACK_KEY: self._key_arn(retained_key_id) if retained_key_id else None,
        }
        self._bucket_tags = {tags.KMS_KEY: bucket_key} if bucket_key else {}
        self._instance_type_zones = instance_type_zones or {}
        self._budgets_denied, self._objects = budgets_denied, objects or {}
        self._object_properties = object_properties or {}
        self._bucket_regions, self._key_states = bucket_regions, key_states
        default_reservations = {RESERVATION: reservation_properties(AvailabilityZone=f"{region}a")}
        self._ec2 = StaticEc2(
            account=ACCOUNT,
            region=region,
            reservations=default_reservations if reservations is None else reservations,
            quotas=quotas or {},
            networks={VPC: default_network(region)} if networks is None else networks,
            key_policy=DEFAULT_KEY_POLICY if key_policy is None else key_policy,
        )
        self._handlers = handlers(Command(skip=True))

    def create(self, request: ResourceRequest, folder: Path, on_output: Callable[[str], None]) -> CreateResult:
        """Return an id and outputs, without creating anything."""
        select_handler(self._handlers, request)
        return f"{request.name}-id", _outputs(request, f"{request.name}-0000000", self.region)

    def import_resource(self, request: ResourceRequest, folder: Path, on_output: Callable[[str], None]) -> CreateResult:
        """Return the outputs of an existing resource."""
        select_handler(self._handlers, request)
        return request.id, _outputs(request, request.id, self.region)

    def delete(self, request: ResourceRequest, folder: Path, on_output: Callable[[str], None]) -> None:
        """Check the request, without deleting anything."""
        select_handler(self._handlers, request)

    def invoke(self, token: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result of the provider function `token`, with the keys that the program reads."""
        results: dict[str, Callable[[], dict[str, Any]]] = {
            "aws:index/getPartition:getPartition": lambda: {"partition": "aws", "dnsSuffix": "amazonaws.com"},
            "aws:index/getRegion:getRegion": lambda: {"region": self.region},
            "aws:index/getCallerIdentity:getCallerIdentity": lambda: {"accountId": ACCOUNT},
            "aws:index/getAvailabilityZones:getAvailabilityZones": lambda: {"names": self._zones},
            "aws:ec2/getInstanceType:getInstanceType": lambda: self._instance_type(arguments["instanceType"]),
            "aws:ec2/getInstanceTypeOfferings:getInstanceTypeOfferings": lambda: self._offerings(arguments),
            "aws:budgets/getBudget:getBudget": self._budget,
            "aws:resourcegroupstaggingapi/getResources:getResources": lambda: self._tagged_resources(arguments),
            "aws:s3/getBucket:getBucket": lambda: self._bucket(arguments["bucket"]),
            "aws:s3/getObject:getObject": lambda: self._object(arguments),
            "aws:s3/getObjects:getObjects": lambda: self._list_objects(arguments),
            "aws:kms/getKey:getKey": lambda: self._key(arguments["keyId"]),
            "aws:cloudcontrol/getResource:getResource": lambda: self._ec2.resource(arguments),
            "aws:servicequotas/getServiceQuota:getServiceQuota": lambda: self._ec2.quota(arguments),
            "aws:ec2/getVpc:getVpc": lambda: self._ec2.vpc(arguments),
            "aws:ec2/getSubnet:getSubnet": lambda: self._ec2.subnet(arguments),
            "aws:ec2/getRouteTable:getRouteTable": lambda: self._ec2.route_table(arguments),
            "aws:ec2/getVpcEndpoint:getVpcEndpoint": lambda: self._ec2.endpoint(arguments),
            "aws:ec2/getAmi:getAmi": lambda: self._ec2.image(arguments),
        }
        if token not in results:
            raise UnsupportedTypeError(f"the static account does not support the function {token}")
        check_input_keys(LOOKUPS[token][0], arguments, token)
        return results[token]()

    def stop(self) -> None:
        """Do nothing: a static account runs no commands."""

    @property
    def _zones(self) -> list[str]:
        return [f"{self.region}{letter}" for letter in "abc"]

    def _instance_type(self, name: str) -> dict[str, Any]:
        return to_lookup_result(read_instance_types()[name])

    def _offerings(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        names = [name for item in arguments["filters"] for name in item["values"]]
        pairs = [(name, zone) for name in names for zone in self._instance_type_zones.get(name, self._zones)]
        return {"instanceTypes": [name for name, _ in pairs], "locations": [zone for _, zone in pairs]}

    def _tagged_resources(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        filters = arguments["tagFilters"]
        roles = [value for item in filters if item["key"] == tags.ROLE for value in item["values"]]
        arns = [arn for role in roles if (arn := self._arns_by_role.get(role))]
        return {
            "resourceTagMappingLists": [
                {"resourceArn": arn, "tags": self._bucket_tags if ":s3:" in arn else {}, "complianceDetails": []}
                for arn in arns
            ]
        }

    def _budget(self) -> dict[str, Any]:
        if self._budgets_denied:
            raise RequestFailedError("api error AccessDeniedException: not authorized to perform: budgets:ViewBudget")
        raise missing_budget_error()

    def _key_arn(self, key_id: str) -> str:
        return f"arn:aws:kms:{self.region}:{ACCOUNT}:key/{key_id}"

    def _bucket(self, name: str) -> dict[str, Any]:
        regions = {name: self.region} if self._bucket_regions is None else self._bucket_regions
        if name not in regions:
            raise RequestFailedError(f"reading S3 Bucket ({name}): couldn't find resource")
        return {"id": name, "bucket": name, "arn": f"arn:aws:s3:::{name}", "bucketRegion": regions[name]}

    def _object(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        bucket, key = arguments["bucket"], arguments["key"]
        if key not in self._objects:
            raise missing_object_error(bucket, key)
        content = self._objects[key]
        names = {"id": f"{bucket}/{key}", "bucket": bucket, "key": key}
        return {**names, "body": content, "contentLength": len(content), **self._object_properties}

    def _list_objects(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        keys = sorted(key for key in self._objects if key.startswith(arguments["prefix"]))
        return {"keys": keys, "commonPrefixes": [], "owners": [], **arguments}

    def _key(self, name: str) -> dict[str, Any]:
        arn = name if name.startswith("arn:") else self._key_arn(name)
        states = {arn: "Enabled"} if self._key_states is None else self._key_states
        if arn not in states:
            raise RequestFailedError(f"reading KMS Key ({name}): couldn't find resource")
        state = {"enabled": states[arn] == "Enabled", "keyState": states[arn]}
        kind = {"keySpec": "SYMMETRIC_DEFAULT", "keyUsage": "ENCRYPT_DECRYPT"}
        return {"id": arn.rpartition("/")[2], "arn": arn, "keyId": name, "multiRegion": False, **state, **kind}


def _outputs(request: ResourceRequest, name: str, region: str) -> dict[str, Any]:
    """Return the outputs that the program reads and that are not inputs."""
    outputs: dict[str, Any] = {"name": name, "arn": f"arn:aws:static:::{name}"}
    match request.type:
        case "aws:s3/bucket:Bucket":
            outputs |= {"bucket": name, "arn": f"arn:aws:s3:::{name}"}
        case "aws:kms/key:Key":
            outputs = {"keyId": name, "arn": f"arn:aws:kms:{region}:{ACCOUNT}:key/{name}"}
        case "aws:iam/role:Role":
            outputs |= {"arn": f"arn:aws:iam::{ACCOUNT}:role/{name}"}
        case "aws:ec2/eip:Eip":
            outputs |= {"allocationId": f"{request.name}-id", "publicIp": "203.0.113.20"}
        case "aws:ec2/launchTemplate:LaunchTemplate":
            outputs |= {"latestVersion": 1}
        case "aws:fsx/lustreFileSystem:LustreFileSystem":
            outputs |= {"dnsName": f"{name}.fsx.amazonaws.com", "mountName": "fsxmount"}
        case "command:local:Command":
            outputs = {"stdout": "", "stderr": ""}
    return outputs
