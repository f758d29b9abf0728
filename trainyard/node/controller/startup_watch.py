"""Watches the startup of nodes before the first attempt, for a launch that does not wait for it."""

from collections.abc import Iterable
from typing import Any

from trainyard.models.startup_failures import NO_EVENTS_TIMEOUT_SECONDS, PLAYBOOK_RETRY_SECONDS, PlaybookFailures
from trainyard.quantity import quantity

# The controller waits longer than the launch: a launch that waits then reports the failure first, with the output of
# the node's console, which the controller does not read.
CONTROLLER_TIMEOUT_FACTOR = 1.5


class StartupWatch:
    """Finds nodes that will not become ready, so that the others are not billed until the startup timeout."""

    def __init__(self) -> None:
        self._failures = PlaybookFailures()
        self._boots: dict[str, str] = {}  # node -> its newest boot
        self._first_seen: dict[str, float] = {}

    def update(self, event: Any) -> None:
        """Record an event of a node."""
        self._failures.handle(event)
        self._boots[event.instance] = max(self._boots.get(event.instance, ""), event.boot)

    def find_failure(self, members: Iterable[str], now: float) -> str | None:
        """Return the reason why the startup of one of these members has failed. `now`: Unix time, seconds."""
        self._first_seen = {node: self._first_seen.get(node, now) for node in members}
        for node, first_seen in self._first_seen.items():
            timeout = CONTROLLER_TIMEOUT_FACTOR * NO_EVENTS_TIMEOUT_SECONDS
            if node not in self._boots and now > first_seen + timeout:
                return f"no events received from {node} within {quantity(timeout / 60, 'minute')}"
            boot = self._boots.get(node, "")
            if self._failures.is_final(node, boot, CONTROLLER_TIMEOUT_FACTOR * PLAYBOOK_RETRY_SECONDS):
                return f"node {node} could not be configured: {self._failures.message}"
        return None
