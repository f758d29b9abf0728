"""Watches the startup of nodes: finds those that will not become ready, so that the others do not wait for them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from trainyard.models.startup_failures import NO_EVENTS_TIMEOUT_SECONDS, PlaybookFailures
from trainyard.quantity import quantity


@dataclass(frozen=True)
class StartupFailure:
    """Why a node will not become ready. `is_permanent`: the startup of any node would fail in the same way."""

    node: str
    message: str
    is_permanent: bool = False

    def describe(self) -> str:
        """Return the failure in one sentence."""
        return f"node {self.node} could not be configured: {self.message}"


class StartupWatch:
    """Finds nodes that will not become ready."""

    def __init__(self) -> None:
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
        failures = []
        for node, first_seen in self._first_seen.items():
            boot = self._boots.get(node)
            if boot is None and now > first_seen + NO_EVENTS_TIMEOUT_SECONDS:
                timeout = quantity(round(NO_EVENTS_TIMEOUT_SECONDS / 60), "minute")
                failures.append(StartupFailure(node, f"no events received within {timeout}"))
            elif boot is not None and self._failures.is_final(node, boot):
                message = self._failures.messages[node, boot]
                failures.append(StartupFailure(node, message, self._failures.is_permanent(node, boot)))
        return failures
