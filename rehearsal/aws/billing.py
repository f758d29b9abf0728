"""What the account's instances cost in time: AWS bills each by the second, and a minute at least."""

from collections.abc import Iterable

from rehearsal.aws.control_models import InstanceTruth
from trainyard.models.report import Billed

LEAST_SECONDS = 60.0


def billed_seconds(instances: Iterable[InstanceTruth], now: float) -> float:
    """Instance-seconds billed until `now`, the account's Unix time: of each, from its launch to its termination.

    An instance that is being held in a termination is billed on. One that is stopped counts as if it ran, one that
    went from pending to terminated costs nothing.
    """
    return sum(
        max(LEAST_SECONDS, (now if each.terminated_time is None else min(now, each.terminated_time)) - each.launch_time)
        for each in instances
        if _ran(each)
    )


def billed_by_type(instances: Iterable[InstanceTruth], now: float) -> list[Billed]:
    """The same for each instance type, in the order of their names."""
    of_type: dict[str, list[InstanceTruth]] = {}
    for each in filter(_ran, instances):
        of_type.setdefault(each.instance_type, []).append(each)
    return [
        Billed(type=name, instances=len(found), seconds=round(billed_seconds(found, now), 3))
        for name, found in sorted(of_type.items())
    ]


def _ran(instance: InstanceTruth) -> bool:
    return instance.terminated_time != instance.launch_time
