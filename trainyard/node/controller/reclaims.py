"""Detects when the owner of an interruptible reservation reclaims instances, two minutes before their termination.

EC2 documents the notice as an EventBridge event, and the status of the source reservation's allocation. The controller
polls the status, which needs no resource in the stack. It does not name the instances that EC2 will terminate.
"""

import logging
from collections.abc import Iterable

from botocore.exceptions import BotoCoreError, ClientError

from trainyard.aws.reservations import find_reclaim_target, find_source
from trainyard.models.manifest import WorkerGroup

LOG = logging.getLogger("controller.reclaims")


class ReclaimWatch:
    """Watches the interruptible reservations of the worker groups."""

    def __init__(self, groups: Iterable[WorkerGroup], region: str) -> None:
        self._region = region
        self._reservations = [
            group.reservation
            for group in groups
            if group.reservation and group.market == "interruptible-capacity-reservation"
        ]
        self._sources: dict[str, str | None] = {}
        self._targets: dict[str, int | None] = {}

    def has_new_reclaim(self) -> bool:
        """Read the reservations; return whether a reclaim has started since the previous call.

        An error of AWS is logged: the run continues, and loses the progress since its last checkpoint in a reclaim.
        """
        started = False
        for name in self._reservations:
            try:
                target = self._read_target(name)
            except (BotoCoreError, ClientError) as error:
                LOG.error("%s could not be read: %s", name, error)
                continue
            if target is not None and target != self._targets.get(name):
                LOG.warning("the owner of %s reclaims instances until it has %d", name, target)
                started = True
            self._targets[name] = target
        return started

    def _read_target(self, name: str) -> int | None:
        if name not in self._sources:
            self._sources[name] = find_source(self._region, name)
        source = self._sources[name]
        return None if source is None else find_reclaim_target(self._region, source)
