"""Look up the facts of the AWS account that a stack depends on, before any resource is created."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

import pulumi
import pulumi_aws as aws

from infra.lookups.errors import is_missing, lookup_error, lookup_failure
from infra.lookups.run import read_object
from infra.lookups.subnet import SubnetFacts, look_up_head_zone, look_up_subnet
from infra.scope import Scope
from trainyard.aws import tags
from trainyard.config.quotas import required_quotas
from trainyard.config.settings import StackSettings
from trainyard.errors import InputError, Problem
from trainyard.models.layout import STACK_OF_BUCKET

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class ReservationFacts:
    """A capacity reservation. Times are Unix times; `end_time` is None for an unlimited reservation.

    `available`: instances that can be launched into it now. `placement_group_arn`: the cluster placement group that it
    was created in. `is_interruptible`: None where Cloud Control does not return it.
    """

    id: str
    instance_type: str
    zone: str
    instances: int
    available: int
    placement_group_arn: str | None
    state: str
    is_capacity_block: bool
    is_interruptible: bool | None
    start_time: float | None
    end_time: float | None

    @property
    def placement_group(self) -> str | None:
        """Name of the placement group."""
        return self.placement_group_arn and self.placement_group_arn.rpartition("/")[2]

    @property
    def summary(self) -> str:
        """The capacity of the reservation, and where its instances are placed."""
        placement = f"placement group {self.placement_group}" if self.placement_group else "no placement group"
        instances = f"{self.available} of {self.instances} x {self.instance_type} are available"
        return f"reservation {self.id}: {instances} in {self.zone}, {placement}"


@dataclass(frozen=True, kw_only=True)
class AccountFacts:
    """Facts of the account.

    `offers` are pairs of Availability Zone and instance type, `zones` the usable Availability Zones, `quotas` maps
    codes to values. `bucket_region` and `access_log_region` are of the existing buckets in the settings, `bucket_stack`
    the tag of the stack that writes to the data bucket. `key_state`
    and `key_policy` (JSON) are of the KMS key in the settings; None if unreadable. `held` is the capacity reservation
    of `trainyard reserve`, `head_zone` the zone of the head's subnet in a deployed stack. `missing` are the problems of
    resources in the settings that AWS did not return.
    """

    partition: str
    dns_suffix: str
    region: str
    account: str
    zones: tuple[str, ...]
    offers: frozenset[tuple[str, str]]
    quotas: Mapping[str, float] = field(default_factory=dict)
    reservation: ReservationFacts | None = None
    held: ReservationFacts | None = None
    head_zone: str | None = None
    subnet: SubnetFacts | None = None
    bucket_region: str | None = None
    bucket_stack: str | None = None
    access_log_region: str | None = None
    key_state: str | None = None
    key_policy: str | None = None
    missing: tuple[Problem, ...] = ()

    def zones_offering(self, settings: StackSettings) -> tuple[str, ...]:
        """Return the Availability Zones that offer every instance type of the stack."""
        return tuple(
            zone for zone in self.zones if all((zone, name) in self.offers for name in settings.required_types)
        )

    def worker_zones(self, settings: StackSettings) -> tuple[str, ...]:
        """Return the Availability Zones in which the workers may be; head and file system are in the first.

        The head of a deployed stack keeps its zone when `trainyard reserve` reserves in another: a new zone would
        replace the subnet and with it the head.
        """
        if fixed := self.subnet or self.reservation:
            return (fixed.zone,)
        zones = settings.capacity.zones or self.zones_offering(settings)
        held = (self.held.zone,) if self.held else ()
        head = (self.head_zone,) if self.head_zone in zones else ()
        ordered = tuple(dict.fromkeys((*head, *held, *zones)))
        return ordered[:1] if settings.fsx else ordered


def make_scope(project: str, stack: str, settings: StackSettings, facts: AccountFacts) -> Scope:
    """Return the scope, whose zone is that of the head."""
    return Scope(
        project=project,
        stack=stack,
        account=facts.account,
        region=facts.region,
        partition=facts.partition,
        dns_suffix=facts.dns_suffix,
        zone=facts.worker_zones(settings)[0],
        boundary=settings.identity.permissions_boundary,
        extra_tags=settings.tags,
    )


def zone_is_default(settings: StackSettings, facts: AccountFacts) -> bool:
    """Whether the program selected the zone. Then existing subnets keep it when a later lookup selects another."""
    return settings.capacity.zones is None and facts.reservation is None and facts.subnet is None


def look_up_account(settings: StackSettings, stack_tag: str) -> AccountFacts:
    """Look up all facts. Failed lookups of resources in the settings are returned as `missing`."""
    partition = aws.get_partition()
    region = aws.get_region().region
    offered = aws.ec2.get_instance_type_offerings(
        location_type="availability-zone",
        filters=[{"name": "instance-type", "values": settings.instance_types}],
    )
    available = aws.get_availability_zones(state="available").names  # includes Local Zones, which have no EFA and FSx
    reservation, existing, services = (
        settings.capacity.reservation_id,
        settings.network.existing,
        settings.node_services,
    )
    bucket, logs = settings.storage.bucket, settings.storage.access_log_bucket
    configured_key = settings.storage.kms_key
    key = configured_key if configured_key and region_of(configured_key) == region else None
    problems: list[Problem] = []
    bucket_region = _collect(lambda: look_up_bucket("bucket", bucket), problems) if bucket else None
    return AccountFacts(
        partition=partition.partition,
        dns_suffix=partition.dns_suffix,
        region=region,
        account=aws.get_caller_identity().account_id,
        zones=tuple(sorted(zone for zone in available if re.fullmatch(f"{region}[a-f]", zone))),
        offers=frozenset(zip(offered.locations, offered.instance_types, strict=True)),
        quotas=look_up_quotas(settings),
        reservation=_collect(lambda: look_up_reservation(*reservation), problems) if reservation else None,
        held=look_up_held_capacity(stack_tag) if settings.reserves_any_capacity else None,
        head_zone=None if existing else look_up_head_zone(stack_tag),
        subnet=_collect(lambda: look_up_subnet(existing, region, services), problems) if existing else None,
        bucket_region=bucket_region,
        bucket_stack=read_object(bucket, STACK_OF_BUCKET) if bucket_region == region else None,
        access_log_region=_collect(lambda: look_up_bucket("access_log_bucket", logs), problems) if logs else None,
        key_state=_collect(lambda: look_up_key(key), problems) if key else None,
        key_policy=look_up_key_policy(key) if key else None,
        missing=tuple(problems),
    )


def _collect(look_up: Callable[[], T], problems: list[Problem]) -> T | None:
    """Return the result, or None and add the problems."""
    try:
        return look_up()
    except InputError as error:
        problems += error.problems
        return None


def look_up_quotas(settings: StackSettings) -> dict[str, float]:
    """Return quota code -> value of the quotas that the stack needs. An unreadable quota is a warning."""
    quotas = {}
    for quota in required_quotas(settings):
        try:
            result = aws.servicequotas.get_service_quota(service_code=quota.service, quota_code=quota.code)
            quotas[quota.code] = result.value
        except Exception as error:
            pulumi.log.warn(f"quota {quota.name} ({quota.code}) is not validated: {lookup_failure(error)}")
    return quotas


def look_up_reservation(path: str, reservation: str) -> ReservationFacts:
    """Look up a capacity reservation by its id through Cloud Control, because pulumi-aws has no lookup for it.

    Source: properties of the CloudFormation resource type AWS::EC2::CapacityReservation.
    """
    try:
        resource = aws.cloudcontrol.get_resource(type_name="AWS::EC2::CapacityReservation", identifier=reservation)
    except Exception as error:
        raise lookup_error(f"capacity.{path}", reservation, error) from error
    properties = json.loads(resource.properties)
    instances = int(properties.get("TotalInstanceCount") or properties.get("InstanceCount", 0))
    return ReservationFacts(
        id=reservation,
        instance_type=properties["InstanceType"],
        zone=properties["AvailabilityZone"],
        instances=instances,
        available=int(properties.get("AvailableInstanceCount", instances)),
        placement_group_arn=properties.get("PlacementGroupArn"),
        state=properties.get("State", "in an unknown state"),
        is_capacity_block=properties.get("ReservationType") == "capacity-block",
        is_interruptible=properties.get("Interruptible"),
        start_time=_unix(properties.get("StartDate")),
        end_time=_unix(properties.get("EndDate")),
    )


def look_up_held_capacity(stack_tag: str) -> ReservationFacts | None:
    """Look up the active or pending capacity reservation of `trainyard reserve`, by the tags of the stack."""
    tagged = aws.resourcegroupstaggingapi.get_resources(
        resource_type_filters=["ec2:capacity-reservation"],
        tag_filters=[{"key": key, "values": [value]} for key, value in tags.held_capacity_tags(stack_tag).items()],
    )
    names = sorted(entry.resource_arn.rpartition("/")[2] for entry in tagged.resource_tag_mapping_lists)
    held = filter(None, map(_find_reservation, names))
    return next((reservation for reservation in held if reservation.state in ("active", "pending")), None)


def _find_reservation(name: str) -> ReservationFacts | None:
    """Look up a reservation; None if it does not exist: its tags may be listed after its end."""
    try:
        return look_up_reservation("reserve", name)
    except InputError as error:
        if error.__cause__ is not None and is_missing(error.__cause__):
            return None
        raise


def look_up_bucket(key: str, bucket: str) -> str:
    """Return the region of an existing bucket. `key`: of `storage`, for the error."""
    try:
        return aws.s3.get_bucket(bucket=bucket).bucket_region
    except Exception as error:
        raise lookup_error(f"storage.{key}", bucket, error) from error


def region_of(arn: str) -> str:
    """Return the region of an ARN."""
    return arn.split(":")[3]


def look_up_key(arn: str) -> str:
    """Return the state of an existing KMS key."""
    try:
        return aws.kms.get_key(key_id=arn).key_state
    except Exception as error:
        raise lookup_error("storage.kms_key", arn, error) from error


def look_up_key_policy(arn: str) -> str | None:
    """Return the policy of a KMS key (JSON) through Cloud Control; None if unreadable."""
    try:
        resource = aws.cloudcontrol.get_resource(type_name="AWS::KMS::Key", identifier=arn.rpartition("/")[2])
    except Exception as error:
        pulumi.log.warn(f"the policy of {arn} is not validated: {lookup_failure(error)}")
        return None
    return json.dumps(json.loads(resource.properties)["KeyPolicy"])


def _unix(text: str | None) -> float | None:
    """Parse ISO 8601, or the format of some CloudFormation types: Tue Dec 01 11:30:00 UTC 2026."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = datetime.strptime(text, "%a %b %d %H:%M:%S %Z %Y")
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
