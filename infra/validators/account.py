"""Rules that only the account can judge, in one registry: asked in every preview, before anything is made."""

import time
from collections.abc import Callable, Iterator

import pulumi

from infra.components.key import AUTO_SCALING_ROLE
from infra.lookups.account import Facts, region_of
from infra.validators import subnet as subnet_checks
from trainyard.base import CONFIG_KEY, InputError, Problem
from trainyard.config.demand import quotas_needed
from trainyard.config.settings import StackSettings

Check = Callable[[StackSettings, Facts], Iterator[Problem]]

# EC2 ends the instances of a Capacity Block so long before the block's end. EC2 user guide, "Capacity Blocks for ML".
BLOCK_ENDS_EARLY_SECONDS = 1800.0
# A run ends before that by itself: its last checkpoint takes time.
LAST_CHECKPOINT_SECONDS = 600.0


def capacity_ends(facts: Facts) -> float | None:
    """Unix time until which a run may use the reserved instances; none: for ever."""
    found = facts.reservation
    if found is None or found.ends is None:
        return None
    early = BLOCK_ENDS_EARLY_SECONDS if found.block else 0.0
    return found.ends - early - LAST_CHECKPOINT_SECONDS


def zone_offers_the_types(settings: StackSettings, facts: Facts) -> Iterator[Problem]:
    usable, decided = facts.offering(settings), facts.subnet or facts.reservation
    zone = decided.zone if decided else settings.network.zone
    if zone in usable or (zone is None and usable):
        return
    names = " and ".join(settings.instance_types)
    key, value = "network.zone", zone
    if facts.subnet:
        key, value = "network.existing.subnet_id", facts.subnet.id
    elif facts.reservation and settings.capacity.reservation_id:
        path, value = settings.capacity.reservation_id
        key = f"capacity.{path}"
    where, there = (f"is in {zone}, which ", "in") if decided else ("", "of")
    if zone is None:
        why = f"no zone of {facts.region} that the account may use offers {names}"
    elif zone not in facts.zones:
        why = f"{where}is no zone of {facts.region} that the account may use"
    else:
        why = f"{where}does not offer {names}"
    fix = (
        f"Choose one {there} {', '.join(usable)}"
        if usable
        else f"Choose other types, or a region beside {facts.region}"
    )
    yield Problem(key=f"{CONFIG_KEY}.{key}", value=value, why=why, fix=fix)


def zone_is_the_reservations(settings: StackSettings, facts: Facts) -> Iterator[Problem]:
    found = facts.reservation
    if found is None:
        return
    if settings.network.zone not in (None, found.zone):
        yield Problem(
            key=f"{CONFIG_KEY}.network.zone",
            value=settings.network.zone,
            why=f"reservation {found.id} is in {found.zone}",
            fix="Leave it out, or name another reservation",
        )
    if facts.subnet and facts.subnet.zone != found.zone:
        yield Problem(
            key=f"{CONFIG_KEY}.network.existing.subnet_id",
            value=facts.subnet.id,
            why=f"is in {facts.subnet.zone}, and reservation {found.id} in {found.zone}",
            fix=f"Name a subnet in {found.zone}, or another reservation",
        )


def _of_reservation(settings: StackSettings, why: str, fix: str) -> Problem:
    named = settings.capacity.reservation_id
    assert named is not None
    return Problem(key=f"{CONFIG_KEY}.capacity.{named[0]}", value=named[1], why=why, fix=fix)


def reservation_is_of_its_kind(settings: StackSettings, facts: Facts) -> Iterator[Problem]:
    found, wanted = facts.reservation, settings.capacity.capacity_block is not None
    if found and found.block != wanted:
        is_a, key = ("a Capacity Block", "capacity_block") if found.block else ("no Capacity Block", "reservation")
        yield _of_reservation(settings, f"is {is_a}", f"Name it under capacity.{key}")


def reservation_can_be_used(settings: StackSettings, facts: Facts) -> Iterator[Problem]:
    found = facts.reservation
    if found is None or found.state == "active":
        return
    begins = found.starts is not None and found.state in ("scheduled", "pending", "payment-pending")
    when = f", begins at {_told(found.starts)}" if begins and found.starts is not None else ""
    fix = "Come back then" if begins else "Name one that is active"
    yield _of_reservation(settings, f"is {found.state}{when}", fix)


def reservation_suits(settings: StackSettings, facts: Facts) -> Iterator[Problem]:
    found = facts.reservation
    if found is None:
        return
    wanted = sum(group.nodes for group in settings.groups if group.reservation)
    if found.instance_type != settings.instance_type:
        why = f"is of {found.instance_type}, and the workers are {settings.instance_type}"
        yield _of_reservation(settings, why, f"Set instance_type to {found.instance_type}, or name another")
    if found.instances < wanted:
        why = f"holds instances for {found.instances} of the {wanted} nodes that are launched into it"
        yield _of_reservation(settings, why, f"Set nodes so that {found.instances} suffice, or name a larger one")


def reservation_lasts(settings: StackSettings, facts: Facts) -> Iterator[Problem]:
    ends, found = capacity_ends(facts), facts.reservation
    if ends is None or found is None or found.state != "active":
        return
    left, job = (ends - time.time()) / 60, settings.job
    if left < settings.launch.bring_up_minutes:
        why = f"its instances end at {_told(ends)}, before a launch may be done (launch.bring_up_minutes)"
        yield _of_reservation(settings, why, "Name one that lasts longer")
    elif left < job.time_limit_minutes and settings.capacity.at_its_end == "refuse":
        yield Problem(
            key=f"{CONFIG_KEY}.job.time_limit_minutes",
            value=job.time_limit_minutes,
            why=f"the instances of {found.id} end in {left:.0f} minutes, at {_told(ends)}",
            fix=f"Choose {left:.0f} at most, or at_its_end: shorten, which lets the run end with them",
        )


def quotas_suffice(settings: StackSettings, facts: Facts) -> Iterator[Problem]:
    for need in quotas_needed(settings):
        granted = facts.quotas.get(need.code)
        if granted is not None and need.vcpus > granted:
            yield Problem(
                key=need.key,
                value=need.value,
                why=f"takes {need.vcpus} vCPUs, and the quota {need.name} ({need.code}) of this account in "
                f"{facts.region} is {granted:g}",
                fix=f"Ask for more: aws service-quotas request-service-quota-increase --service-code ec2 --quota-code "
                f"{need.code} --desired-value {need.vcpus} --region {facts.region}",
            )


def data_is_in_the_region(settings: StackSettings, facts: Facts) -> Iterator[Problem]:
    storage = settings.storage
    key_region = region_of(storage.kms_key) if storage.kms_key else None
    for key, value, region in (
        ("bucket", storage.bucket, facts.bucket_region),
        ("kms_key", storage.kms_key, key_region),
    ):
        if region is not None and region != facts.region:
            yield Problem(
                key=f"{CONFIG_KEY}.storage.{key}",
                value=value,
                why=f"is in {region}, and the stack in {facts.region}",
                fix=f"Name one in {facts.region}, or set aws:region to {region}",
            )


def key_can_be_used(settings: StackSettings, facts: Facts) -> Iterator[Problem]:
    if facts.key_state not in (None, "Enabled"):
        yield Problem(
            key=f"{CONFIG_KEY}.storage.kms_key",
            value=settings.storage.kms_key,
            why=f"its state is {facts.key_state}, so nothing under it can be written or read",
            fix="Enable it (one that waits for its deletion needs aws kms cancel-key-deletion first), or name another",
        )


def key_admits_auto_scaling(settings: StackSettings, facts: Facts) -> Iterator[Problem]:
    """Or every instance with a root volume under it ends as it begins: Client.InternalError.

    Auto Scaling user guide, "Required AWS KMS key policy for use with encrypted volumes".
    """
    if facts.key_policy is not None and AUTO_SCALING_ROLE not in facts.key_policy:
        yield Problem(
            key=f"{CONFIG_KEY}.storage.kms_key",
            value=settings.storage.kms_key,
            why=f"its policy does not name {AUTO_SCALING_ROLE}, so no node with a root volume under it would start",
            fix="Let that role use it and create grants, as infra/components/key.py does for the stack's own key",
        )


def image_can_be_reached(settings: StackSettings, facts: Facts) -> Iterator[Problem]:
    """An endpoint leads to the registries of its own region, whosever they are."""
    job, found, node = settings.job, settings.ecr_image, settings.node
    pulls = job.container is not None and node.system == "configure" and "container" not in node.leave_out
    closed = not (facts.subnet.way_out or facts.subnet.public) if facts.subnet else not settings.network.nat
    if pulls and closed and (found is None or found.region != facts.region):
        yield Problem(
            key=f"{CONFIG_KEY}.job.container",
            value=job.container,
            why=f"is not in ECR of {facts.region}, and nodes without a way out reach no other registry",
            fix="Copy it into an ECR repository there, or set node.leave_out: [container] with an image of the "
            "workers that holds Docker and it",
        )


def boundary_is_of_the_account(settings: StackSettings, facts: Facts) -> Iterator[Problem]:
    """IAM user guide, "Permissions boundaries for IAM entities": a managed policy, AWS's or the account's own."""
    boundary = settings.identity.permissions_boundary
    if boundary is None:
        return
    _, partition, _, _, account, _ = boundary.split(":", 5)
    if partition != facts.partition or account not in (facts.account, "aws"):
        yield Problem(
            key=f"{CONFIG_KEY}.identity.permissions_boundary",
            value=boundary,
            why=f"is not of account {facts.account} in {facts.partition}, and the boundary of its roles must be",
            fix="Name a policy of that account, or one of AWS's own",
        )


CHECKS: tuple[Check, ...] = (
    zone_offers_the_types,
    zone_is_the_reservations,
    reservation_is_of_its_kind,
    reservation_can_be_used,
    reservation_suits,
    reservation_lasts,
    quotas_suffice,
    *subnet_checks.CHECKS,
    data_is_in_the_region,
    key_can_be_used,
    key_admits_auto_scaling,
    image_can_be_reached,
    boundary_is_of_the_account,
)


# What time alone brings about: of a cluster that stands it is no mistake, and must not bar its next `up`.
OF_TIME: tuple[Check, ...] = (reservation_can_be_used, reservation_lasts)


def check_account(settings: StackSettings, facts: Facts, stands: bool) -> None:
    """Raises InputError with every problem that any check finds. `stands`: whether an earlier `up` made the cluster.

    Then what time has brought about is a warning: the launch judges it, if there is anything to launch.
    """
    problems = list(facts.absent)
    for check in CHECKS:
        for problem in check(settings, facts):
            if stands and check in OF_TIME:
                pulumi.log.warn(str(problem))
            else:
                problems.append(problem)
    if problems:
        raise InputError(problems)


def _told(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(moment))
