"""What the account says of all that a stack counts on, looked up once before anything is made."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

import pulumi
import pulumi_aws as aws

from infra.lookups.errors import absent, reason
from infra.lookups.subnet import SubnetFacts, look_up_subnet
from infra.scope import Scope
from trainyard.base import InputError, Problem
from trainyard.config.demand import quotas_needed
from trainyard.config.settings import StackSettings

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class ReservationFacts:
    """A capacity reservation. Times are Unix time; `ends` is none where it has no end."""

    id: str
    instance_type: str
    zone: str
    instances: int
    state: str
    block: bool
    starts: float | None
    ends: float | None


@dataclass(frozen=True, kw_only=True)
class Facts:
    """`offers`: pairs of zone and instance type; `zones`: those that we may use; `quotas`: code -> vCPUs.

    `key_state`, `key_policy` (JSON): of a KMS key that the settings name in this region; none also where the caller may
    not look. `absent`: what they name and AWS does not give, which is none here.
    """

    partition: str
    dns_suffix: str
    region: str
    account: str
    zones: tuple[str, ...]
    offers: frozenset[tuple[str, str]]
    quotas: Mapping[str, float] = field(default_factory=dict)
    reservation: ReservationFacts | None = None
    subnet: SubnetFacts | None = None
    bucket_region: str | None = None
    key_state: str | None = None
    key_policy: str | None = None
    absent: tuple[Problem, ...] = ()

    def offering(self, settings: StackSettings) -> tuple[str, ...]:
        """The zones that offer every instance type of the stack."""
        return tuple(
            zone for zone in self.zones if all((zone, name) in self.offers for name in settings.instance_types)
        )


def scope_of(project: str, stack: str, settings: StackSettings, facts: Facts) -> Scope:
    """The scope, in the zone that decides: the subnet's, the reservation's, the one asked for, or the first usable."""
    decided = facts.subnet or facts.reservation
    return Scope(
        project=project,
        stack=stack,
        account=facts.account,
        region=facts.region,
        partition=facts.partition,
        dns_suffix=facts.dns_suffix,
        zone=decided.zone if decided else settings.network.zone or facts.offering(settings)[0],
        boundary=settings.identity.permissions_boundary,
        extra_tags=settings.tags,
    )


def zone_is_ours(settings: StackSettings, facts: Facts) -> bool:
    """Whether nobody but us has chosen the zone: then it stays where a later look-up would choose another."""
    return settings.network.zone is None and facts.reservation is None and facts.subnet is None


def look_up_facts(settings: StackSettings) -> Facts:
    """Ask AWS."""
    partition = aws.get_partition()
    region = aws.get_region().region
    offered = aws.ec2.get_instance_type_offerings(
        location_type="availability-zone",
        filters=[{"name": "instance-type", "values": settings.instance_types}],
    )
    available = aws.get_availability_zones(state="available").names  # Local Zones among them, which lack EFA and FSx
    named, existing, services = settings.capacity.reservation_id, settings.network.existing, settings.node_services
    bucket, named_key = settings.storage.bucket, settings.storage.kms_key
    key = named_key if named_key and region_of(named_key) == region else None
    missing: list[Problem] = []
    return Facts(
        partition=partition.partition,
        dns_suffix=partition.dns_suffix,
        region=region,
        account=aws.get_caller_identity().account_id,
        zones=tuple(sorted(zone for zone in available if re.fullmatch(f"{region}[a-z]", zone))),
        offers=frozenset(zip(offered.locations, offered.instance_types, strict=True)),
        quotas=look_up_quotas(settings),
        reservation=_given(lambda: look_up_reservation(*named), missing) if named else None,
        subnet=_given(lambda: look_up_subnet(existing, region, services), missing) if existing else None,
        bucket_region=_given(lambda: look_up_bucket(bucket), missing) if bucket else None,
        key_state=_given(lambda: look_up_key(key), missing) if key else None,
        key_policy=look_up_key_policy(key) if key else None,
        absent=tuple(missing),
    )


def _given(look_up: Callable[[], T], missing: list[Problem]) -> T | None:
    try:
        return look_up()
    except InputError as error:
        missing += error.problems
        return None


def look_up_quotas(settings: StackSettings) -> dict[str, float]:
    """Those that the stack counts against. One that the caller may not look at is told, and judged by the launch."""
    found = {}
    for need in quotas_needed(settings):
        try:
            found[need.code] = aws.servicequotas.get_service_quota(service_code="ec2", quota_code=need.code).value
        except Exception as error:
            pulumi.log.warn(f"the quota {need.name} ({need.code}) is not known: {reason(error)}")
    return found


def look_up_reservation(path: str, reservation: str) -> ReservationFacts:
    """A capacity reservation by its id, through Cloud Control: pulumi-aws has no look-up of its own for it.

    Source: CloudFormation's resource type AWS::EC2::CapacityReservation, whose properties the answer holds.
    """
    try:
        found = aws.cloudcontrol.get_resource(type_name="AWS::EC2::CapacityReservation", identifier=reservation)
    except Exception as error:
        raise absent(f"capacity.{path}", reservation, error) from error
    told = json.loads(found.properties)
    return ReservationFacts(
        id=reservation,
        instance_type=told["InstanceType"],
        zone=told["AvailabilityZone"],
        instances=int(told.get("TotalInstanceCount") or told["InstanceCount"]),
        state=told.get("State", "of a state that AWS does not tell"),
        block=told.get("ReservationType") == "capacity-block",
        starts=_unix(told.get("StartDate")),
        ends=_unix(told.get("EndDate")),
    )


def look_up_bucket(bucket: str) -> str:
    """The region of a bucket that is there."""
    try:
        return aws.s3.get_bucket(bucket=bucket).bucket_region
    except Exception as error:
        raise absent("storage.bucket", bucket, error) from error


def region_of(arn: str) -> str:
    return arn.split(":")[3]


def look_up_key(arn: str) -> str:
    """The state of a key that is there."""
    try:
        return aws.kms.get_key(key_id=arn).key_state
    except Exception as error:
        raise absent("storage.kms_key", arn, error) from error


def look_up_key_policy(arn: str) -> str | None:
    """Through Cloud Control, as reservations; none where the caller may not look at it."""
    try:
        found = aws.cloudcontrol.get_resource(type_name="AWS::KMS::Key", identifier=arn.rpartition("/")[2])
    except Exception as error:
        pulumi.log.warn(f"the policy of {arn} is not known: {reason(error)}")
        return None
    return json.dumps(json.loads(found.properties)["KeyPolicy"])


def _unix(told: str | None) -> float | None:
    """Of an ISO 8601 time, or as CloudFormation's own resource types write some: Tue Dec 01 11:30:00 UTC 2026."""
    if not told:
        return None
    try:
        moment = datetime.fromisoformat(told)
    except ValueError:
        moment = datetime.strptime(told, "%a %b %d %H:%M:%S %Z %Y")
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
