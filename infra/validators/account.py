"""Validators of a stack against the AWS account. Every preview runs them before any resource is created."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pulumi

from infra.lookups.account import AccountFacts, region_of
from infra.validators import subnet
from trainyard.aws import tags
from trainyard.aws.block_end import LAST_CHECKPOINT_SECONDS, usable_end
from trainyard.aws.block_payments import describe_failed_payment, describe_pending_payment
from trainyard.aws.stack_key import AUTO_SCALING_ROLE
from trainyard.config.quotas import increase_command, required_quotas
from trainyard.config.settings import StackSettings
from trainyard.config.validation_errors import invalid_setting
from trainyard.errors import InputError, Problem
from trainyard.models.layout import STACK_OF_BUCKET
from trainyard.times import format_time

AccountValidator = Callable[[StackSettings, AccountFacts], Iterator[Problem]]


def capacity_start_time(facts: AccountFacts) -> float | None:
    """Unix time from which nodes can be launched into the Capacity Block; None without one."""
    reservation = facts.reservation
    return reservation.start_time if reservation and reservation.is_capacity_block else None


def capacity_end_time(facts: AccountFacts) -> float | None:
    """Unix time until which a run may use the reserved instances; None: unlimited."""
    reservation = facts.reservation
    if reservation is None or reservation.end_time is None:
        return None
    if reservation.is_capacity_block:  # Cloud Control returns no UltraServer type: the instance type decides
        return usable_end(reservation.end_time, reservation.instance_type)
    return reservation.end_time - LAST_CHECKPOINT_SECONDS


def zones_offer_instance_types(settings: StackSettings, facts: AccountFacts) -> Iterator[Problem]:
    """Each Availability Zone of the stack offers its instance types."""
    usable, names = facts.zones_offering(settings), " and ".join(settings.required_types)
    fix = f"Use one of {', '.join(usable)}" if usable else f"Choose other types, or a region other than {facts.region}"
    for zone in facts.worker_zones(settings):
        if zone in usable:
            continue
        reason = f"does not offer {names}" if zone in facts.zones else f"is not a usable zone of {facts.region}"
        key, value = "capacity.zones", ", ".join(settings.capacity.zones or ())
        if facts.subnet:
            key, value = "network.existing.subnet_id", facts.subnet.id
        elif facts.reservation and settings.capacity.reservation_id:
            path, value = settings.capacity.reservation_id
            key = f"capacity.{path}"
        yield invalid_setting(key, value, f"{zone} {reason}", fix)
    if not facts.worker_zones(settings):
        reason = f"no Availability Zone of {facts.region} offers {names}"
        yield invalid_setting("instance_type", settings.instance_type, reason, fix)


def spot_types_offered(settings: StackSettings, facts: AccountFacts) -> Iterator[Problem]:
    """A zone of the stack offers each instance type that Spot Instances may have."""
    zones = facts.worker_zones(settings)
    for name in settings.instance_types:
        if not zones or any((zone, name) in facts.offers for zone in zones):
            continue
        if name not in settings.required_types and (spot := settings.capacity.spot_settings):
            key = "equal_gpus" if spot[1].equal_gpus else "instance_types"
            reason = f"no zone of the stack offers it ({', '.join(zones)})"
            fix = "Remove it, or use another region"
            if spot[1].equal_gpus:
                fix = "Replace equal_gpus by instance_types without this type"
            yield invalid_setting(f"capacity.{spot[0]}.{key}", name, reason, fix)


def zones_match_reservation(settings: StackSettings, facts: AccountFacts) -> Iterator[Problem]:
    """Availability Zones and subnet of the stack are those of the reservation."""
    reservation, zones = facts.reservation, settings.capacity.zones
    if reservation is None:
        return
    if zones not in (None, (reservation.zone,)):
        reason = f"reservation {reservation.id} is in {reservation.zone}"
        yield invalid_setting("capacity.zones", list(zones), reason, "Remove it, or use another reservation")
    if facts.subnet and facts.subnet.zone != reservation.zone:
        reason = f"is in {facts.subnet.zone}, and reservation {reservation.id} in {reservation.zone}"
        fix = f"Use a subnet in {reservation.zone}, or another reservation"
        yield invalid_setting("network.existing.subnet_id", facts.subnet.id, reason, fix)


def held_capacity_in_stack_zones(settings: StackSettings, facts: AccountFacts) -> Iterator[Problem]:
    """The reservation of `trainyard reserve` is in a zone that the launch uses, else it costs and is not used."""
    held, zones = facts.held, facts.worker_zones(settings)
    if held is None or held.zone in zones:
        return
    value = list(settings.capacity.zones) if settings.capacity.zones else None
    reason = f"head and file system are in {', '.join(zones)}, and {held.id} of trainyard reserve is in {held.zone}"
    fix = (
        f"Set [{held.zone}] (the update then replaces head and file system of a deployed stack; export the data of the "
        f"file system first), or cancel the reservation: trainyard reserve -s {pulumi.get_stack()} --cancel"
    )
    yield invalid_setting("capacity.zones", value, reason, fix)


def _reservation_problem(settings: StackSettings, reason: str, fix: str) -> Problem:
    named = settings.capacity.reservation_id
    assert named is not None
    return invalid_setting(f"capacity.{named[0]}", named[1], reason, fix)


def reservation_has_configured_type(settings: StackSettings, facts: AccountFacts) -> Iterator[Problem]:
    """capacity.capacity_block names a Capacity Block, and capacity.reservation an On-Demand Capacity Reservation."""
    reservation, expected = facts.reservation, settings.capacity.capacity_block is not None
    if reservation and reservation.is_capacity_block != expected:
        is_block = reservation.is_capacity_block
        reason, key = ("is a Capacity Block", "capacity_block") if is_block else ("is no Capacity Block", "reservation")
        yield _reservation_problem(settings, reason, f"Set it under capacity.{key}")


def interruptible_matches_reservation(settings: StackSettings, facts: AccountFacts) -> Iterator[Problem]:
    """capacity.reservation.interruptible is true if the reservation is interruptible, else false."""
    reservation, expected = facts.reservation, settings.capacity.interruptible
    if reservation is None or reservation.is_interruptible in (None, expected):
        return
    if expected:
        reason, fix = "is not interruptible", "Remove capacity.reservation.interruptible"
    else:
        reason = "is interruptible: its owner can reclaim the instances with two minutes' notice"
        fix = "Set capacity.reservation.interruptible: true, or use another reservation"
    yield _reservation_problem(settings, reason, fix)


def reservation_is_active(settings: StackSettings, facts: AccountFacts) -> Iterator[Problem]:
    """The reservation is active. A Capacity Block may also be scheduled or payment-pending: the run starts with it."""
    reservation = facts.reservation
    if reservation is None or reservation.state == "active":
        return
    start, starts_later = reservation.start_time, reservation.state in ("scheduled", "payment-pending")
    if start is not None and starts_later and reservation.is_capacity_block:
        limit = f"{settings.launch.startup_timeout_minutes:g} minutes (launch.startup_timeout_minutes)"
        is_unpaid = reservation.state == "payment-pending"
        text = f"{describe_pending_payment(reservation.id)}. " if is_unpaid else ""
        text += f"Capacity Block {reservation.id} starts at {format_time(start)}"
        pulumi.log.info(f"{text}. If that is within {limit} of the launch, the launch waits, else it schedules the run")
        return
    if start is not None and reservation.state in ("assessing", "scheduled", "delayed", "pending", "payment-pending"):
        reason = f"is {reservation.state} and starts at {format_time(start)}"
        fix = f"Run trainyard up -s {pulumi.get_stack()} again at that time"
    elif reservation.state == "payment-failed":
        reason = describe_failed_payment(reservation.id)
        fix = f"Buy another: trainyard blocks -s {pulumi.get_stack()}, then set its id"
    else:
        reason, fix = f"is {reservation.state}", "Use an active reservation"
    yield _reservation_problem(settings, reason, fix)


def reservation_fits_workers(settings: StackSettings, facts: AccountFacts) -> Iterator[Problem]:
    """The reservation has the instance type and enough instances."""
    reservation = facts.reservation
    if reservation is None:
        return
    required = sum(group.nodes for group in settings.groups if group.reservation)
    if reservation.instance_type != settings.instance_type:
        reason = f"is for {reservation.instance_type}, and the workers are {settings.instance_type}"
        fix = f"Set instance_type to {reservation.instance_type}, or use another reservation"
        yield _reservation_problem(settings, reason, fix)
    # AWS does not document the total of a block before its start; its available capacity is zero.
    if reservation.instances < required and (reservation.instances or reservation.state == "active"):
        reason = f"has {reservation.instances} instances, and {required} nodes are launched into it"
        fix = f"Reduce nodes so that {reservation.instances} are enough, or use a larger reservation"
        yield _reservation_problem(settings, reason, fix)


def reservation_has_available_instances(settings: StackSettings, facts: AccountFacts) -> Iterator[Problem]:
    """Enough instances of the reservation are available. Not for an existing cluster, whose nodes use some of them."""
    reservation = facts.reservation
    required = sum(group.nodes for group in settings.groups if group.reservation)
    if reservation and reservation.state == "active" and reservation.available < required <= reservation.instances:
        reason = f"{reservation.available} of its {reservation.instances} instances are available, and {required} nodes"
        fix = "Terminate instances that use it, or use another reservation"
        yield _reservation_problem(settings, f"{reason} are launched into it", fix)


def reservation_outlasts_run(settings: StackSettings, facts: AccountFacts) -> Iterator[Problem]:
    """The reservation does not end before the startup timeout, nor before the time limit if on_expiry is refuse."""
    end, reservation = capacity_end_time(facts), facts.reservation
    if end is None or reservation is None or reservation.state != "active":
        return
    remaining_minutes, job = (end - time.time()) / 60, settings.job
    if remaining_minutes < settings.launch.startup_timeout_minutes:
        reason = f"a run in it ends at {format_time(end)}, within launch.startup_timeout_minutes from now"
        yield _reservation_problem(settings, reason, "Use a reservation with a later end")
    elif remaining_minutes < job.time_limit_minutes and settings.capacity.on_expiry == "refuse":
        reason = f"a run in {reservation.id} ends in {remaining_minutes:.0f} minutes, at {format_time(end)}"
        fix = f"Set it to at most {remaining_minutes:.0f}, or set on_expiry: shorten, which ends the run at that time"
        yield invalid_setting("job.time_limit_minutes", job.time_limit_minutes, reason, fix)


def quotas_sufficient(settings: StackSettings, facts: AccountFacts) -> Iterator[Problem]:
    """The account's quotas on vCPUs and network interfaces are sufficient for the stack."""
    for quota in required_quotas(settings):
        granted = facts.quotas.get(quota.code)
        if granted is not None and quota.amount > granted:
            reason = (
                f"needs {quota.amount} {quota.unit}, and the quota {quota.name} ({quota.code}) of this account in "
                f"{facts.region} is {granted:g}"
            )
            command = increase_command(quota.service, quota.code, quota.amount, facts.region)
            fix = f"Request an increase: {command}"
            yield Problem(quota.key, quota.value, reason, fix, "")


def data_in_stack_region(settings: StackSettings, facts: AccountFacts) -> Iterator[Problem]:
    """Existing buckets and KMS key are in the region of the stack."""
    storage = settings.storage
    key_region = region_of(storage.kms_key) if storage.kms_key else None
    for key, value, region in (
        ("bucket", storage.bucket, facts.bucket_region),
        ("access_log_bucket", storage.access_log_bucket, facts.access_log_region),
        ("kms_key", storage.kms_key, key_region),
    ):
        if region is not None and region != facts.region:
            fix = f"Use one in {facts.region}, or set aws:region to {region}"
            yield invalid_setting(f"storage.{key}", value, f"is in {region}, and the stack in {facts.region}", fix)


def data_bucket_of_one_stack(settings: StackSettings, facts: AccountFacts) -> Iterator[Problem]:
    """No other stack writes to the existing bucket: nodes of both could read and change the runs of the other."""
    own = tags.stack_tag(pulumi.get_project(), pulumi.get_stack())
    if facts.bucket_stack is not None and facts.bucket_stack != own:
        reason = f"it belongs to stack {facts.bucket_stack} (object {STACK_OF_BUCKET} of the bucket)"
        fix = (
            "Name another bucket, or omit the key. job.data and job.model can read any bucket. If that stack no longer "
            "exists, delete the object"
        )
        yield invalid_setting("storage.bucket", settings.storage.bucket, reason, fix)


def key_enabled(settings: StackSettings, facts: AccountFacts) -> Iterator[Problem]:
    """The existing KMS key is enabled."""
    if facts.key_state not in (None, "Enabled"):
        reason = f"its state is {facts.key_state}, so data encrypted with it can be neither written nor read"
        fix = "Enable it (first aws kms cancel-key-deletion, if it is pending deletion), or use another key"
        yield invalid_setting("storage.kms_key", settings.storage.kms_key, reason, fix)


def key_allows_auto_scaling(settings: StackSettings, facts: AccountFacts) -> Iterator[Problem]:
    """The existing KMS key allows Auto Scaling; without it launches fail with Client.InternalError.

    Auto Scaling user guide, "Required AWS KMS key policy for use with encrypted volumes".
    """
    if facts.key_policy is not None and AUTO_SCALING_ROLE not in facts.key_policy:
        reason = f"its policy does not allow {AUTO_SCALING_ROLE}, so nodes with an encrypted root volume cannot launch"
        fix = "Allow the role to use the key and to create grants, see trainyard/aws/stack_key.py"
        yield invalid_setting("storage.kms_key", settings.storage.kms_key, reason, fix)


def image_reachable(settings: StackSettings, facts: AccountFacts) -> Iterator[Problem]:
    """Nodes without internet access pull from ECR of their region: VPC endpoints serve that region only."""
    job, image = settings.job, settings.ecr_image
    pulls = job.container is not None and settings.node.runs_role("container")
    subnet_facts = facts.subnet
    internet = settings.network.nat_gateway
    if subnet_facts:
        internet = subnet_facts.has_egress or subnet_facts.is_public
    if pulls and not internet and (image is None or image.region != facts.region):
        reason = f"is not in ECR of {facts.region}, and nodes without internet access reach no other registry"
        fix = (
            "Copy it into an ECR repository of that region, or set node.skip_roles: [container] with an AMI that has "
            "Docker and the image"
        )
        yield invalid_setting("job.container", job.container, reason, fix)


def boundary_in_account(settings: StackSettings, facts: AccountFacts) -> Iterator[Problem]:
    """IAM user guide, "Permissions boundaries for IAM entities": a policy of AWS or of the account."""
    boundary = settings.identity.permissions_boundary
    if boundary is None:
        return
    _, partition, _, _, account, _ = boundary.split(":", 5)
    if partition != facts.partition or account not in (facts.account, "aws"):
        reason = f"is not a policy of account {facts.account} in partition {facts.partition}"
        yield invalid_setting(
            "identity.permissions_boundary", boundary, reason, "Use a policy of that account, or one of AWS"
        )


VALIDATORS: tuple[AccountValidator, ...] = (
    zones_offer_instance_types,
    spot_types_offered,
    zones_match_reservation,
    held_capacity_in_stack_zones,
    reservation_has_configured_type,
    interruptible_matches_reservation,
    reservation_is_active,
    reservation_fits_workers,
    reservation_has_available_instances,
    reservation_outlasts_run,
    quotas_sufficient,
    *subnet.VALIDATORS,
    data_in_stack_region,
    data_bucket_of_one_stack,
    key_enabled,
    key_allows_auto_scaling,
    image_reachable,
    boundary_in_account,
)
# They depend on the time. For an existing cluster their problems are warnings, so that it can still be updated.
TIME_DEPENDENT: tuple[AccountValidator, ...] = (reservation_is_active, reservation_outlasts_run)
# They do not apply to an existing cluster.
NEW_CLUSTER_ONLY: tuple[AccountValidator, ...] = (reservation_has_available_instances,)


def unsearched_zones(stack: str, settings: StackSettings, facts: AccountFacts) -> str | None:
    """Return a warning if a new stack's file system limits the launch to one of several zones, else None."""
    is_decided = facts.head_zone or facts.held or facts.subnet or settings.capacity.zones
    zones = facts.zones_offering(settings)
    if is_decided or not settings.fsx or not settings.reserves_any_capacity or len(zones) < 2:
        return None
    return (
        f"the file system is created in {facts.worker_zones(settings)[0]}, so the launch requests capacity there only. "
        f"trainyard reserve -s {stack} searches {', '.join(zones)}: run it before trainyard up -s {stack}, or set "
        "capacity.zones to one zone"
    )


def unlimited_exports(settings: StackSettings) -> str | None:
    """Return a warning if FSx is linked to a bucket of the user, to whose policy the stack adds nothing, else None."""
    if not settings.storage.bucket or not settings.fsx or not settings.fsx.linked:
        return None
    return (
        f"root on a node can write files below the linked paths of FSx to {settings.storage.bucket} "
        "(lfs hsm_archive): add the statement of docs/deploy.md, FSx and a bucket of yours, to the policy of the bucket"
    )


def validate_account(settings: StackSettings, facts: AccountFacts, is_up: bool) -> None:
    """Raise InputError with every problem. If the cluster exists (`is_up`), time-dependent problems are warnings.

    Displays instances and placement group of the reservation in the settings. The launch reads the reservation again
    before it adds nodes.
    """
    problems = list(facts.missing)
    for validator in VALIDATORS:
        if is_up and validator in NEW_CLUSTER_ONLY:
            continue
        for problem in validator(settings, facts):
            if is_up and validator in TIME_DEPENDENT:
                pulumi.log.warn(str(problem))
            else:
                problems.append(replace(problem, code=problem.code or validator.__name__))
    if problems:
        raise InputError(problems)
    if facts.reservation:
        pulumi.log.info(facts.reservation.summary)
