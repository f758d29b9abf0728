"""Whether a run is idle on all of its nodes, as their agents say: for the controller, which ends one that is."""

from collections.abc import Iterable

from trainyard.models.events import ActivityEvent
from trainyard.node.agent.activity import IDLE_PERCENT, TELL_SECONDS

# A node that has said that it is idle says so again each minute. One that fell silent may do anything.
FRESH_SECONDS = 3 * TELL_SECONDS


class Idleness:
    """The agents' last words on whether their node's job works."""

    def __init__(self) -> None:
        self._latest: dict[str, ActivityEvent] = {}

    def hear(self, event: ActivityEvent) -> None:
        known = self._latest.get(event.instance)
        if known is None or event.time >= known.time:
            self._latest[event.instance] = event

    def over(self, attempt: int, nodes: Iterable[str], minutes: float, now: float) -> str | None:
        """Why the run is to end: every node of the attempt has been idle for so long. None as long as one works, or
        is not known to be idle."""
        events = [self._latest.get(node) for node in nodes]
        if not events:
            return None
        for event in events:
            if (
                event is None
                or event.attempt != attempt
                or event.idle_since is None
                or now - event.time > FRESH_SECONDS
                or now - event.idle_since < minutes * 60
            ):
                return None
        what = "GPU" if any(event is not None and event.measured == "gpu" for event in events) else "CPU"
        return (
            f"no node has worked for {minutes:g} minutes: its {what} use was under {IDLE_PERCENT:g} % all the while "
            "(limits.idle_minutes)"
        )
