"""Detects failed node startup: the playbook fails repeatedly, or the node writes no events."""

from typing import Any

from trainyard.models.events import PlaybookEvent

# systemd restarts a failed node playbook, because a package index or mirror may be unavailable for a minute.
PLAYBOOK_RETRY_SECONDS = 90.0
NO_EVENTS_TIMEOUT_SECONDS = 15 * 60.0


class PlaybookFailures:
    """Failures of node playbooks, by node and boot. One failure is not final: systemd restarts a failed playbook."""

    def __init__(self) -> None:
        self.boots: set[str] = set()
        self.messages: dict[tuple[str, str], str] = {}  # (instance, boot) -> message of its last failure
        self._failure_times: dict[tuple[str, str], tuple[float, float]] = {}  # first and last failure
        self._permanent: set[tuple[str, str]] = set()

    def handle(self, event: Any) -> None:
        """Record a node event; events of other kinds are ignored."""
        if not isinstance(event, PlaybookEvent):
            return
        self.boots.add(event.boot)
        if event.status == "failed":
            first, _ = self._failure_times.get((event.instance, event.boot), (event.time, 0.0))
            self._failure_times[event.instance, event.boot] = first, event.time
            self.messages[event.instance, event.boot] = event.message
            if event.is_permanent:
                self._permanent.add((event.instance, event.boot))
        elif event.status == "ok":
            self._failure_times.pop((event.instance, event.boot), None)

    def is_permanent(self, instance: str, boot: str) -> bool:
        """Return whether the playbook of this boot would fail again on any node."""
        return (instance, boot) in self._permanent

    def is_final(self, instance: str, boot: str, seconds: float = PLAYBOOK_RETRY_SECONDS) -> bool:
        """Return whether the playbook of this boot has failed repeatedly for this long, or would fail again."""
        if (instance, boot) in self._permanent:
            return True
        first, last = self._failure_times.get((instance, boot), (0.0, 0.0))
        return last - first >= seconds
