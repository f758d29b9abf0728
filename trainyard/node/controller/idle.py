"""Whether a run is idle on all of its nodes, from the events of their agents."""

from collections.abc import Iterable
from dataclasses import dataclass

from trainyard.models.events import ActivityEvent
from trainyard.node.agent.activity import IDLE_PERCENT, REPORT_SECONDS

# An idle node reports every minute. Without recent reports its state is not known.
MAXIMUM_EVENT_AGE_SECONDS = 3 * REPORT_SECONDS


@dataclass(frozen=True)
class _Received:
    """An event, and when it was received. The clocks of two nodes may differ, so its own time is not used."""

    event: ActivityEvent
    at: float


class IdleDetector:
    """Latest activity of each node of a run. All times are monotonic times of the head, seconds."""

    def __init__(self) -> None:
        self._latest: dict[str, _Received] = {}

    def update(self, event: ActivityEvent, now: float) -> None:
        """Add an event of an agent."""
        known = self._latest.get(event.instance)
        if known is None or (event.boot, event.sequence) >= (known.event.boot, known.event.sequence):
            self._latest[event.instance] = _Received(event, now)

    def find_idle_reason(self, attempt: int, nodes: Iterable[str], minutes: float, now: float) -> str | None:
        """Return the reason to end the run: every node of the attempt has been idle for `minutes`.

        None if a node computes, or if it is not known to be idle.
        """
        latest = [self._latest.get(node) for node in nodes]
        if not latest:
            return None
        for each in latest:
            if each is None or each.event.attempt != attempt or each.event.idle_seconds is None:
                return None
            age = now - each.at
            if age > MAXIMUM_EVENT_AGE_SECONDS or each.event.idle_seconds + age < minutes * 60:
                return None
        resource = "GPU" if any(each is not None and each.event.resource == "gpu" for each in latest) else "CPU"
        return (
            f"all nodes were idle for {minutes:g} minutes: {resource} utilization was below {IDLE_PERCENT:g} % "
            "(guardrails.idle_timeout_minutes)"
        )
