"""An account that makes nothing and answers from constants: the program's graph, in full, without a server."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rehearsal.adapter.account import Subject, checked, handlers
from rehearsal.adapter.command import Command
from rehearsal.adapter.errors import Refused, UnknownType
from rehearsal.adapter.handler import Made, check_keys
from rehearsal.adapter.instance_types import as_look_up, shipped
from rehearsal.adapter.lookups import LOOK_UPS
from rehearsal.adapter.static_ec2 import (
    RESERVATION,
    VPC,
    StaticEc2,
    StaticNetwork,
    image_of,
    reservation,
    suiting_network,
)
from trainyard.aws import tags

ACCOUNT = "123456789012"
_SCALING = f"arn:aws:iam::{ACCOUNT}:role/aws-service-role/autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling"
SUITING_KEY_POLICY = {"Statement": [{"Effect": "Allow", "Principal": {"AWS": _SCALING}, "Action": "kms:*"}]}


class StaticAccount:
    """Checks types and keys as the adapter does.

    `retained`: name of a data bucket that an earlier `up` left. `retained_key`: id of the key that it left. `stands`:
    whether its cluster is still there.
    `reservations`: properties of AWS::EC2::CapacityReservation by id. `quotas`: values by quota code, of all others a
    large one. `networks`: the VPCs that are there, by id. `zones`: those that offer an instance type, by its name; of
    all others every zone. `buckets`: the region of each that is there. `keys`: the state of each KMS key that is there,
    by ARN, `key_policy`: of each. Of what is not given there is one that suits any stack.
    """

    def __init__(
        self,
        region: str = "us-east-1",
        retained: str | None = None,
        retained_key: str | None = None,
        *,
        stands: bool = False,
        reservations: Mapping[str, Mapping[str, Any]] | None = None,
        quotas: Mapping[str, float] | None = None,
        networks: Mapping[str, StaticNetwork] | None = None,
        zones: Mapping[str, Sequence[str]] | None = None,
        buckets: Mapping[str, str] | None = None,
        keys: Mapping[str, str] | None = None,
        key_policy: Mapping[str, Any] | None = None,
    ) -> None:
        self.region = region
        self._tagged_as = {
            tags.DATA_BUCKET: f"arn:aws:s3:::{retained}" if retained else None,
            tags.STAGING_BUCKET: "arn:aws:s3:::trainyard-staging-0000000" if stands else None,
            tags.STACK_KEY: self._key_arn(retained_key) if retained_key else None,
        }
        self._zones_of, self._buckets, self._keys = zones or {}, buckets, keys
        zone = f"{region}a"
        self._ec2 = StaticEc2(
            account=ACCOUNT,
            region=region,
            reservations={RESERVATION: reservation(AvailabilityZone=zone)} if reservations is None else reservations,
            quotas=quotas or {},
            networks={VPC: suiting_network(region)} if networks is None else networks,
            key_policy=SUITING_KEY_POLICY if key_policy is None else key_policy,
        )
        self._handlers = handlers(Command(skip=True))

    def create(self, subject: Subject, root: Path, say: Callable[[str], None]) -> Made:
        checked(self._handlers, subject)
        return f"{subject.name}-id", _outputs(subject, f"{subject.name}-0000000", self.region)

    def adopt(self, subject: Subject, root: Path, say: Callable[[str], None]) -> Made:
        checked(self._handlers, subject)
        return subject.id, _outputs(subject, subject.id, self.region)

    def delete(self, subject: Subject, root: Path, say: Callable[[str], None]) -> None:
        checked(self._handlers, subject)

    def look_up(self, token: str, given: Mapping[str, Any]) -> dict[str, Any]:
        answers: dict[str, Callable[[], dict[str, Any]]] = {
            "aws:index/getPartition:getPartition": lambda: {"partition": "aws", "dnsSuffix": "amazonaws.com"},
            "aws:index/getRegion:getRegion": lambda: {"region": self.region},
            "aws:index/getCallerIdentity:getCallerIdentity": lambda: {"accountId": ACCOUNT},
            "aws:index/getAvailabilityZones:getAvailabilityZones": lambda: {"names": self._zones},
            "aws:ec2/getInstanceType:getInstanceType": lambda: as_look_up(shipped()[given["instanceType"]]),
            "aws:ec2/getInstanceTypeOfferings:getInstanceTypeOfferings": lambda: self._offerings(given),
            "aws:ssm/getParameter:getParameter": lambda: {"insecureValue": image_of(given["name"])},
            "aws:resourcegroupstaggingapi/getResources:getResources": lambda: self._tagged(given),
            "aws:s3/getBucket:getBucket": lambda: self._bucket(given["bucket"]),
            "aws:kms/getKey:getKey": lambda: self._key(given["keyId"]),
            "aws:cloudcontrol/getResource:getResource": lambda: self._ec2.resource(given),
            "aws:servicequotas/getServiceQuota:getServiceQuota": lambda: self._ec2.quota(given),
            "aws:ec2/getVpc:getVpc": lambda: self._ec2.vpc(given),
            "aws:ec2/getSubnet:getSubnet": lambda: self._ec2.subnet(given),
            "aws:ec2/getRouteTable:getRouteTable": lambda: self._ec2.route_table(given),
            "aws:ec2/getVpcEndpoint:getVpcEndpoint": lambda: self._ec2.endpoint(given),
            "aws:ec2/getAmi:getAmi": lambda: self._ec2.image(given),
        }
        if token not in answers:
            raise UnknownType(f"the static account does not know the look-up {token}")
        check_keys(LOOK_UPS[token][0], given, token)
        return answers[token]()

    def stop(self) -> None:
        """Nothing ever runs here."""

    @property
    def _zones(self) -> list[str]:
        return [f"{self.region}{letter}" for letter in "abc"]

    def _offerings(self, given: Mapping[str, Any]) -> dict[str, Any]:
        names = [name for item in given["filters"] for name in item["values"]]
        pairs = [(name, zone) for name in names for zone in self._zones_of.get(name, self._zones)]
        return {"instanceTypes": [name for name, _ in pairs], "locations": [zone for _, zone in pairs]}

    def _tagged(self, given: Mapping[str, Any]) -> dict[str, Any]:
        roles = [value for item in given["tagFilters"] if item["key"] == tags.ROLE for value in item["values"]]
        found = [arn for role in roles if (arn := self._tagged_as.get(role))]
        return {"resourceTagMappingLists": [{"resourceArn": arn, "tags": {}, "complianceDetails": []} for arn in found]}

    def _key_arn(self, name: str) -> str:
        return f"arn:aws:kms:{self.region}:{ACCOUNT}:key/{name}"

    def _bucket(self, name: str) -> dict[str, Any]:
        there = {name: self.region} if self._buckets is None else self._buckets
        if name not in there:
            raise Refused(f"reading S3 Bucket ({name}): couldn't find resource")
        return {"id": name, "bucket": name, "arn": f"arn:aws:s3:::{name}", "bucketRegion": there[name]}

    def _key(self, name: str) -> dict[str, Any]:
        arn = name if name.startswith("arn:") else self._key_arn(name)
        there = {arn: "Enabled"} if self._keys is None else self._keys
        if arn not in there:
            raise Refused(f"reading KMS Key ({name}): couldn't find resource")
        state = {"enabled": there[arn] == "Enabled", "keyState": there[arn]}
        kind = {"keySpec": "SYMMETRIC_DEFAULT", "keyUsage": "ENCRYPT_DECRYPT"}
        return {"id": arn.rpartition("/")[2], "arn": arn, "keyId": name, "multiRegion": False, **state, **kind}


def _outputs(subject: Subject, name: str, region: str) -> dict[str, Any]:
    """What the program reads of a resource beside its inputs."""
    found: dict[str, Any] = {"name": name, "arn": f"arn:aws:static:::{name}"}
    match subject.type:
        case "aws:s3/bucket:Bucket":
            found |= {"bucket": name, "arn": f"arn:aws:s3:::{name}"}
        case "aws:kms/key:Key":
            found = {"keyId": name, "arn": f"arn:aws:kms:{region}:{ACCOUNT}:key/{name}"}
        case "aws:ec2/eip:Eip":
            found |= {"allocationId": f"{subject.name}-id"}
        case "aws:ec2/instance:Instance":
            found |= {"privateIp": "10.42.0.10"}
        case "aws:ec2/launchTemplate:LaunchTemplate":
            found |= {"latestVersion": 1}
        case "aws:fsx/lustreFileSystem:LustreFileSystem":
            found |= {"dnsName": f"{name}.fsx.amazonaws.com", "mountName": "fsxmount"}
        case "command:local:Command":
            found = {"stdout": "", "stderr": ""}
    return found
