"""Profiles of the emulated account: durations of AWS operations, at one second for each minute on AWS, and faults."""

from typing import Literal, get_args

from rehearsal.aws.faults import EventualConsistency, Fault, MemberOmission
from rehearsal.aws.timing import Timing
from trainyard.errors import InputError, Problem, did_you_mean
from trainyard.models.report import Substitution

ProfileName = Literal["realistic", "instant"]
TIME_SCALE = 60.0
_MINUTE = 60.0
# Durations on AWS. GPU instances are pending and shutting-down for minutes: packer issue 682 measured 19 minutes on
# c5.metal, Bottlerocket issue 337 doubled a limit of five minutes, so that six are assumed for pending. "Several
# minutes" until reserved capacity is available again: EC2 user guide, "Capacity Blocks for ML". A reservation ends
# within an hour of its end date: EC2 user guide, "Create a Capacity Reservation". It is pending for up to five
# minutes at first (same guide, "View the state of a Capacity Reservation"): one minute is an assumption. The Pulumi
# provider waits 10 minutes for the deletion of a file system (measured). How much SkipOsShutdown saves is an
# assumption, and that an assessment takes all of the five days which a future-dated reservation is requested in
# advance at least (API reference, CreateCapacityReservation, StartDate). AWS processes the payment of a Capacity
# Block within 12 hours (EC2 user guide, "View Capacity Blocks"): five minutes are an assumption. EC2 repeats a status
# check every minute: that an instance is impaired two minutes after it stopped to respond is an assumption.
AWS_TIMING = Timing(
    pending_seconds=2 * _MINUTE,
    large_gpu_pending_seconds=6 * _MINUTE,
    shutting_down_seconds=2 * _MINUTE,
    large_gpu_shutting_down_seconds=19 * _MINUTE,
    skip_os_shutdown_seconds=5 * _MINUTE,
    reserved_capacity_return_seconds=5 * _MINUTE,
    reservation_end_delay_seconds=60 * _MINUTE,
    reservation_pending_seconds=_MINUTE,
    reservation_assessment_seconds=5 * 24 * 60 * _MINUTE,
    block_payment_seconds=5 * _MINUTE,
    impaired_seconds=2 * _MINUTE,
    fsx_creating_seconds=10 * _MINUTE,
    fsx_deleting_seconds=10 * _MINUTE,
)


def select_profile(name: str) -> ProfileName:
    """Return a profile by its name. Raises InputError for an unknown name."""
    for known in get_args(ProfileName):
        if name == known:
            return known  # type: ignore[no-any-return]
    names = get_args(ProfileName)
    fix = f"{did_you_mean(name, names)}Use one of {', '.join(names)}"
    raise InputError([Problem("--profile", name, "unknown profile", fix, "unknown_profile")])


def profile_timing(profile: ProfileName) -> Timing:
    """Return the durations of a profile, seconds."""
    if profile == "instant":
        return Timing()
    scaled = {name: seconds / TIME_SCALE for name, seconds in AWS_TIMING.model_dump(exclude_none=True).items()}
    return Timing(**scaled)


def profile_faults(profile: ProfileName) -> tuple[Fault, ...]:
    """Return the faults of a profile, which are active in addition to those of --fault."""
    return (MemberOmission(every=10), EventualConsistency(seconds=1)) if profile == "realistic" else ()


def profile_substitution(profile: ProfileName) -> Substitution:
    """Return how the emulated account's durations differ from AWS."""
    if profile == "instant":
        return Substitution(
            original="minutes until instances run or are terminated, and reserved capacity is available again",
            replacement="no time",
            reason="the rehearsal is shorter",
        )
    pending = _minutes(AWS_TIMING.pending_seconds, AWS_TIMING.large_gpu_pending_seconds)
    shutting_down = _minutes(AWS_TIMING.shutting_down_seconds, AWS_TIMING.large_gpu_shutting_down_seconds)
    return Substitution(
        original=f"{pending} minutes until an instance runs, {shutting_down} until it is terminated",
        replacement="as many seconds",
        reason="the rehearsal takes minutes",
    )


def _minutes(seconds: float, large_seconds: float | None) -> str:
    """Return the range from an ordinary to a large instance."""
    return f"{seconds / _MINUTE:g} to {(large_seconds or 0.0) / _MINUTE:g}"
