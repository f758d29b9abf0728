"""Watches the startup of nodes: finds those that will not become ready, so that the others do not wait for them."""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from trainyard.models.startup_failures import NO_EVENTS_TIMEOUT_SECONDS, PlaybookFailures
from trainyard.quantity import quantity

STATUS_POLL_SECONDS = 30.0
# Two status checks: EC2 repeats them every minute (EC2 user guide, "Status checks for Amazon EC2 instances").
IMPAIRED_SECONDS = 60.0
LOG = logging.getLogger("controller")


@dataclass(frozen=True)
class StartupFailure:
    """Why a node will not become ready.

    `is_permanent`: the startup of any node would fail in the same way. `is_instance_fault`: the instance
    may be the cause, even if others fail in the same way.
    """

    node: str
    message: str
    is_permanent: bool = False
    is_instance_fault: bool = False

    def describe(self) -> str:
        """Return the failure in one sentence."""
        return f"node {self.node} could not be configured: {self.message}"


class StartupWatch:
    """Finds nodes that will not become ready.

    `find_impaired`: returns instance -> reason for those that EC2 reports as impaired.
    """

    def __init__(self, find_impaired: Callable[[Collection[str]], Mapping[str, str]]) -> None:
        self._find_impaired = find_impaired
        self._reasons: Mapping[str, str] = {}
        self._impaired_since: dict[str, float] = {}
        self._status_at = self._described_at = float("-inf")
        self._failures = PlaybookFailures()
        self._boots: dict[str, str] = {}  # node -> its newest boot
        self._first_seen: dict[str, float] = {}

    def update(self, event: Any) -> None:
        """Record an event of a node."""
        self._failures.handle(event)
        self._boots[event.instance] = max(self._boots.get(event.instance, ""), event.boot)

    def find_failures(self, nodes: Iterable[str], now: float) -> list[StartupFailure]:
        """Return the failures among these nodes, which are not ready yet. `now`: Unix time, seconds."""
        self._first_seen = {node: self._first_seen.get(node, now) for node in nodes}
        failures = self._impaired_failures([node for node in self._first_seen if node not in self._boots], now)
        impaired = {failure.node for failure in failures}
        for node, first_seen in self._first_seen.items():
            boot = self._boots.get(node)
            if node in impaired:
                continue
            if boot is None and now > first_seen + NO_EVENTS_TIMEOUT_SECONDS:
                timeout = quantity(round(NO_EVENTS_TIMEOUT_SECONDS / 60), "minute")
                failures.append(StartupFailure(node, f"no events received within {timeout}", is_instance_fault=True))
            elif boot is not None and self._failures.is_final(node, boot):
                message = self._failures.messages[node, boot]
                failures.append(StartupFailure(node, message, self._failures.is_permanent(node, boot)))
        return failures

    def _impaired_failures(self, silent: Collection[str], now: float) -> list[StartupFailure]:
        """Return the failures of nodes without events that EC2 has reported as impaired for some time."""
        if silent and now >= self._status_at + STATUS_POLL_SECONDS:
            self._status_at = now
            try:
                self._reasons = self._find_impaired(silent)
                self._impaired_since = {node: self._impaired_since.get(node, now) for node in self._reasons}
                self._described_at = now
            except (BotoCoreError, ClientError) as error:
                LOG.warning("the status of %s cannot be read: %s", ", ".join(silent), error)
        return [
            StartupFailure(node, f"no events received, and {self._reasons[node]}", is_instance_fault=True)
            for node, since in self._impaired_since.items()
            if node in silent and self._described_at >= since + IMPAIRED_SECONDS
        ]
