"""The capacity reservations of a run, as the controller uses them: their end and their size."""

import logging
from collections.abc import Iterable

from botocore.exceptions import BotoCoreError, ClientError

from trainyard.aws import reservations

LOG = logging.getLogger("controller")


class RunReservations:
    """Moves the end of a run's reservations with the lease, reduces them, and cancels them with the run."""

    def __init__(self, region: str) -> None:
        self._region = region
        self._unused_since: dict[str, float] = {}

    def extend(self, names: Iterable[str], end: float) -> None:
        """Move the end of the reservations to `end` (Unix time, seconds)."""
        try:
            reservations.extend_reservations(self._region, names, end)
        except (BotoCoreError, ClientError) as error:  # the nodes continue as On-Demand Instances
            LOG.error("the capacity reservations were not extended: %s", error)

    def reduce(self, names: Iterable[str], now: float, timeout_seconds: float) -> None:
        """Remove capacity that was unused for longer than the timeout: such as after nodes could not be added.

        Call it only while the run needs no more nodes than it has.
        """
        try:
            described = [each for each in reservations.find_reservations(self._region, {}) if each.id in set(names)]
            since = {each.id: self._unused_since.get(each.id, now) for each in described if each.available}
            self._unused_since = since
            for each in described:
                used = each.instances - each.available
                if used and now > since.get(each.id, now) + timeout_seconds:
                    LOG.warning("reducing %s from %d to %d instances", each.id, each.instances, used)
                    reservations.resize_reservation(self._region, each.id, used)
        except (BotoCoreError, ClientError) as error:  # the next renewal of the lease repeats it
            LOG.error("the capacity reservations were not reduced: %s", error)

    def keep(self) -> None:
        """Note that the run needs the unused capacity for its missing nodes."""
        self._unused_since = {}

    def cancel(self, names: Iterable[str]) -> None:
        """Cancel the reservations."""
        for name in names:
            try:
                reservations.cancel_reservation(self._region, name)
            except (BotoCoreError, ClientError) as error:  # the operator may have cancelled it
                LOG.warning("the capacity reservation %s was not cancelled: %s", name, error)
