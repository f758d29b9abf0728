"""Whether a run is idle on all of its nodes, from the events of their agents."""

from collections.abc import Iterable

from trainyard.models.events import ActivityEvent
from trainyard.node.agent.activity import IDLE_PERCENT, REPORT_SECONDS

# An idle node reports every minute. Without recent reports its state is not known.
MAXIMUM_EVENT_AGE_SECONDS = 3 * REPORT_SECONDS


class IdleDetector:
    """Latest activity of each node of a run."""

    def __init__(self) -> None:
        self._latest: dict[str, ActivityEvent] = {}

    def update(self, event: ActivityEvent) -> None:
        """Add an event of an agent."""
        known = self._latest.get(event.instance)
        # The system time of a node may be set back.
        if known is None or (event.boot, event.sequence) >= (known.boot, known.sequence):
            self._latest[event.instance] = event

    def find_idle_reason(self, attempt: int, nodes: Iterable[str], minutes: float, now: float) -> str | None:
        """Return the reason to end the run: every node of the attempt has been idle for `minutes`.

        None if a node computes, or if it is not known to be idle.
        """
        events = [self._latest.get(node) for node in nodes]
        if not events:
            return None
        for event in events:
            if (
                event is None
                or event.attempt != attempt
                or event.idle_since is None
                or now - event.time > MAXIMUM_EVENT_AGE_SECONDS
                or now - event.idle_since < minutes * 60
            ):
                return None
        resource = "GPU" if any(event is not None and event.resource == "gpu" for event in events) else "CPU"
        return (
            f"all nodes were idle for {minutes:g} minutes: {resource} utilization was below {IDLE_PERCENT:g} % "
            "(guardrails.idle_timeout_minutes)"
        )
