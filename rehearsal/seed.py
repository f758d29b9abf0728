"""Creates the resources that a stack expects in its account: a reservation, a network, a KMS key, a bucket."""

import math
import time
from collections.abc import Collection, Iterable

import boto3

from rehearsal.aws.faults import CapacityBlockStart, Fault, PaymentFailure
from rehearsal.aws.process import ACCOUNT, EmulatedAws
from rehearsal.aws.seed_models import AccountSeed, SeedBucket, SeedKey, SeedNetwork, SeedReservation, SeedSubnet
from trainyard.config.quotas import quota_of, required_vcpu_quotas
from trainyard.config.settings import StackSettings
from trainyard.models.layout import split_s3_uri

_BLOCK_SECONDS = 48 * 3600.0  # longer than any rehearsal, so that the end of the Capacity Block does not limit the run


def create_existing_resources(
    aws: EmulatedAws, settings: StackSettings, quotas: Iterable[str] | None, faults: Collection[Fault] = ()
) -> list[str]:
    """Create the resources that the settings name by id, unless they exist. Returns their ids, also of existing ones.

    `faults`: those of the rehearsal, which may set the start of the Capacity Block and let its payment fail. `quotas`:
    codes of the vCPU quotas that the account has; all others are 0. None: the account has all. Call it before the
    account's state is recorded: the resources are kept after destroy and are not leaks. Raises ValueError with the
    reason when a resource is impossible; then none is created.
    """
    delays = [fault.seconds for fault in faults if isinstance(fault, CapacityBlockStart)]
    payment_failures = [fault for fault in faults if isinstance(fault, PaymentFailure)]
    zone = _availability_zone(settings)
    seed = account_seed(settings, aws.region, zone, max(delays, default=0.0), is_paid=not payment_failures)
    if quotas is not None:
        seed = seed.model_copy(update={"increased_quota_codes": tuple(quotas)})
    aws.inject(*payment_failures)  # only during the seed, for a payment that takes no time; the stages inject all
    aws.seed(seed)
    aws.remove_faults(payment_failures)
    return [
        *(reservation.id for reservation in seed.reservations),
        *(network.id for network in seed.networks),
        *(key.id for key in seed.keys),
        *(bucket.name for bucket in seed.buckets),
    ]


def account_seed(
    settings: StackSettings, region: str, zone: str, block_delay_seconds: float = 0.0, *, is_paid: bool = True
) -> AccountSeed:
    """Return the resources that the settings name by id. `zone`: Availability Zone of the reservation and subnet.

    `block_delay_seconds`: seconds until the Capacity Block starts. `is_paid`: whether its payment is processed.
    """
    reservation, existing, storage = settings.capacity.reservation_id, settings.network.existing, settings.storage
    reservations: tuple[SeedReservation, ...] = ()
    if reservation:
        is_block = settings.capacity.capacity_block is not None
        reservations = (
            SeedReservation(
                id=reservation[1],
                instance_type=settings.instance_type,
                zone=zone,
                count=sum(group.nodes for group in settings.groups if group.reservation),
                block=is_block,
                paid=is_paid,
                interruptible=settings.capacity.interruptible,
                start=_block_start(block_delay_seconds) if is_block and block_delay_seconds else None,
                end=time.time() + _BLOCK_SECONDS if is_block else None,
            ),
        )
    networks: tuple[SeedNetwork, ...] = ()
    if existing:
        networks = (SeedNetwork(id=existing.vpc_id, subnets=(SeedSubnet(id=existing.subnet_id, zone=zone),)),)
    job, own = settings.job, [storage.kms_key] if storage.kms_key else []
    keys = dict.fromkeys([*own, *job.kms_keys])
    # A key encrypts objects of its region only.
    source_region = job.kms_keys[0].split(":")[3] if job.kms_keys else region
    buckets = {split_s3_uri(uri)[0]: source_region for uri in job.s3_sources.values()}
    buckets |= {name: region for name in (storage.bucket, storage.access_log_bucket) if name}
    return AccountSeed(
        region=region,
        reservations=reservations,
        networks=networks,
        keys=tuple(SeedKey(id=arn.rpartition("/")[2], region=arn.split(":")[3]) for arn in keys),
        buckets=tuple(
            SeedBucket(name=name, region=bucket_region, receives_access_logs=name == storage.access_log_bucket)
            for name, bucket_region in buckets.items()
        ),
    )


def _block_start(delay_seconds: float) -> float:
    """Return the Unix time of a start: a whole second, as lookups and scheduled actions have no fractions."""
    return float(math.ceil(time.time() + delay_seconds))


def quota_codes(settings: StackSettings, bake: bool) -> set[str]:
    """Return the codes of the vCPU quotas that the preview requires, and with `bake` that of the image builder."""
    codes = {quota.code for quota in required_vcpu_quotas(settings)}
    builder = quota_of(settings.worker_type, "on-demand")
    return codes | {builder.code} if bake and builder else codes


def to_emulated_account(arn: str) -> str:
    """Return the ARN with the account id of the emulated account."""
    parts = arn.split(":")
    return ":".join([*parts[:4], ACCOUNT, *parts[5:]])


def _availability_zone(settings: StackSettings) -> str:
    """Return the first zone of the settings, or the first zone that offers all instance types of the stack."""
    if settings.capacity.zones:
        return settings.capacity.zones[0]
    instance_types = settings.required_types
    offerings = boto3.client("ec2").describe_instance_type_offerings(
        LocationType="availability-zone", Filters=[{"Name": "instance-type", "Values": instance_types}]
    )["InstanceTypeOfferings"]
    offered = {(offering["Location"], offering["InstanceType"]) for offering in offerings}
    zones = sorted({zone for zone, _ in offered})
    suitable = (zone for zone in zones if all((zone, name) in offered for name in instance_types))
    return next(suitable, zones[0] if zones else "")
