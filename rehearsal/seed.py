"""What a stack says exists already: a reservation, a network, a key, a bucket. It stands before the program runs."""

import time

import boto3

from rehearsal.aws.process import ACCOUNT, EmulatedAws
from rehearsal.aws.seed_models import Given, GivenBucket, GivenKey, GivenNetwork, GivenReservation, GivenSubnet
from trainyard.config.settings import StackSettings

_BLOCK_SECONDS = 48 * 3600.0  # longer than any rehearsal; a stack's own time limit shortens nothing then


def prepare(aws: EmulatedAws, settings: StackSettings) -> list[str]:
    """Make them under exactly their ids where they are not there yet, as in an account that is adopted; their ids.

    It is for the time before the rehearsal looks at the account: they were there, they stay, and are no leak.
    Raises ValueError that says what can't be, and then nothing was made.
    """
    given = given_of(settings, aws.region, _zone(settings))
    aws.give(given)
    return [
        *(one.id for one in given.reservations),
        *(one.id for one in given.networks),
        *(one.id for one in given.keys),
        *(one.name for one in given.buckets),
    ]


def given_of(settings: StackSettings, region: str, zone: str) -> Given:
    """What the settings name, such that it suits them. `zone`: of what they do not say."""
    named, existing, storage = settings.capacity.reservation_id, settings.network.existing, settings.storage
    reservations: tuple[GivenReservation, ...] = ()
    if named:
        block = settings.capacity.capacity_block is not None
        reservations = (
            GivenReservation(
                id=named[1],
                instance_type=settings.instance_type,
                zone=zone,
                count=sum(group.nodes for group in settings.groups if group.reservation),
                block=block,
                end=time.time() + _BLOCK_SECONDS if block else None,
            ),
        )
    networks: tuple[GivenNetwork, ...] = ()
    if existing:
        networks = (GivenNetwork(id=existing.vpc_id, subnets=(GivenSubnet(id=existing.subnet_id, zone=zone),)),)
    return Given(
        region=region,
        reservations=reservations,
        networks=networks,
        keys=(GivenKey(id=storage.kms_key.rpartition("/")[2]),) if storage.kms_key else (),
        buckets=(GivenBucket(name=storage.bucket),) if storage.bucket else (),
    )


def in_this_account(arn: str) -> str:
    """An ARN as it would be in the emulated account."""
    parts = arn.split(":")
    return ":".join([*parts[:4], ACCOUNT, *parts[5:]])


def _zone(settings: StackSettings) -> str:
    """The zone asked for, else the first that offers every type of the stack."""
    if settings.network.zone:
        return settings.network.zone
    wanted = settings.instance_types
    offered = boto3.client("ec2").describe_instance_type_offerings(
        LocationType="availability-zone", Filters=[{"Name": "instance-type", "Values": wanted}]
    )["InstanceTypeOfferings"]
    offers = {(one["Location"], one["InstanceType"]) for one in offered}
    zones = sorted({zone for zone, _ in offers})
    return next((zone for zone in zones if all((zone, name) in offers for name in wanted)), zones[0] if zones else "")
