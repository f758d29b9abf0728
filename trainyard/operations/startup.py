"""From running instances to a running job, as the nodes' own events tell it: progress lines, and the first thing that
makes waiting useless."""

import time
from collections.abc import Callable
from typing import Any

from botocore.exceptions import ClientError

from trainyard.aws.s3 import client
from trainyard.models.events import (
    AgentEvent,
    PlayEvent,
    ServiceEvent,
    TaskEvent,
    VerdictEvent,
    VerificationEvent,
)
from trainyard.models.layout import HEAD_EVENTS, RunLayout, chunk_attempt
from trainyard.models.run import Outcome
from trainyard.models.streams import Cursor, node_events
from trainyard.operations.cluster import Cluster
from trainyard.operations.errors import BringUpError, DeadlineError
from trainyard.operations.progress import Display

POLL_SECONDS = 1.0
# A play that failed is started again by its unit: an index or a mirror may be away for a minute.
OUTAGE_SECONDS = 90.0
SILENT, SILENT_SECONDS, CONSOLE_LINES = "no sign yet", 15 * 60.0, 20


class Deadline:
    """The end of what begins now, after `minutes`, which the user gave as `key`."""

    def __init__(self, minutes: float, key: str = "launch.bring_up_minutes") -> None:
        self.minutes, self.key, self.at = minutes, key, time.time() + minutes * 60

    def wait(self, what: str, done: Callable[[], bool]) -> None:
        """Poll until done. Raises DeadlineError with what was waited for when it is over."""
        while not done():
            if time.time() > self.at:
                raise DeadlineError(f"{what} did not come within {self.minutes:g} minutes ({self.key})")
            time.sleep(POLL_SECONDS)


class Plays:
    """Which nodes' plays have failed. A unit starts a failed play again, so a failure is not the end at once."""

    def __init__(self) -> None:
        self.boots: set[str] = set()
        self.message = ""
        self._failing: dict[tuple[str, str], tuple[float, float]] = {}  # times of the first and the last failure

    def hear(self, event: Any) -> None:
        if not isinstance(event, PlayEvent):
            return
        self.boots.add(event.boot)
        if event.status == "failed":
            first, _ = self._failing.get((event.instance, event.boot), (event.time, 0.0))
            self._failing[event.instance, event.boot] = first, event.time
            self.message = event.message
        elif event.status == "ok":
            self._failing.pop((event.instance, event.boot), None)

    def failed(self, instance: str, boot: str) -> bool:
        """Whether the play of this boot fails again and again for longer than anything is away for a moment."""
        first, last = self._failing.get((instance, boot), (0.0, 0.0))
        return last - first >= OUTAGE_SECONDS


def wait_for_head(cluster: Cluster, show: Display, deadline: Deadline) -> None:
    """Store and controller are up, in the newest boot of the head that the manifest names."""
    assert cluster.staging is not None
    head = cluster.manifest.head
    cursor = Cursor(cluster.staging, f"{HEAD_EVENTS}{head.instance}/")
    services: dict[str, set[str]] = {}
    plays = Plays()

    def ready() -> bool:
        for event in node_events(cursor):
            tell(show, event)
            if isinstance(event, ServiceEvent):
                services.setdefault(event.boot, set()).add(event.service)
            plays.hear(event)
        newest = max([*services, *plays.boots], default="")
        if plays.failed(head.instance, newest):
            raise BringUpError(f"the head {head.instance} could not be configured: {plays.message}")
        return services.get(newest) == {"rendezvous", "controller"}

    deadline.wait("the head's rendezvous store and controller", ready)
    show.line("head", f"{head.address} ready")


class Nodes:
    """New nodes of a run on their way up: made before they are launched, to hear them and nothing older."""

    def __init__(self, cluster: Cluster, show: Display, deadline: Deadline, run: str) -> None:
        self._cluster, self._show, self._deadline, self._run = cluster, show, deadline, run
        self._cursor = Cursor(cluster.data, RunLayout(run).events)
        self._cursor.skip()
        self._new: list[str] = []
        self._last: dict[str, str] = {}
        self._ready: set[str] = set()
        self._up: dict[int, set[str]] = {}
        self._plays = Plays()
        self._silent_until = time.time() + min(SILENT_SECONDS, deadline.minutes * 60)

    def expect(self, new: list[str]) -> None:
        """These were launched."""
        self._new = new
        self._last = dict.fromkeys(new, SILENT)

    def wait_for_agents(self) -> None:
        """Every new node is configured and its agent has spoken."""

        def ready() -> bool:
            if outcome := self._look():
                raise BringUpError(f"the run has meanwhile {outcome.state}: {outcome.reason}")
            return self._ready >= set(self._new)

        self._wait("the new nodes' agents", ready)

    def wait_for_job(self, nodes: int, after: int = 0) -> None:
        """The workers of `nodes` nodes are up in an attempt later than `after`; of the built-in trainer also a metric
        line of it is there. A user's job has none."""

        def started() -> bool:
            if outcome := self._look():
                return _ended(outcome)
            attempts = [number for number, up in self._up.items() if number > after and len(up) == nodes]
            return bool(attempts) and (self._cluster.manifest.job.train is None or self._metrics_of(max(attempts)))

        self._wait("the job's start", started)

    def _wait(self, what: str, done: Callable[[], bool]) -> None:
        try:
            self._deadline.wait(what, done)
        except DeadlineError as error:
            states = "; ".join(f"{node}: {text}" for node, text in self._last.items())
            raise DeadlineError(f"{error}. Last seen: {states}") from None

    def _look(self) -> Outcome | None:
        """Hear what came; the run's outcome, where it is over. Raises BringUpError for a node that will not come."""
        for event in sorted(node_events(self._cursor), key=lambda one: one.time):
            self._hear(event)
            if self._plays.failed(event.instance, event.boot):
                raise BringUpError(f"node {event.instance} could not be configured: {self._plays.message}")
        outcome = self._cluster.outcome(self._run)
        silent = [node for node, text in self._last.items() if text == SILENT]
        if outcome is None and silent and time.time() > self._silent_until:
            minutes = round(SILENT_SECONDS / 60)
            console = console_of(self._cluster.region, silent[0])
            raise BringUpError(f"no sign of {', '.join(silent)} within {minutes} minutes of its launch{console}")
        return outcome

    def _hear(self, event: Any) -> None:
        node = event.instance
        self._plays.hear(event)
        if isinstance(event, AgentEvent):
            self._ready.add(node)
            if event.state in {"workers_up", "workers_done"}:
                self._up.setdefault(event.attempt, set()).add(node)
        if text := tell(self._show, event):
            self._last[node] = text

    def _metrics_of(self, attempt: int) -> bool:
        """A metric line of this attempt or a later one is there."""
        keys = self._cluster.data.keys(RunLayout(self._run).metrics)
        return any(chunk_attempt(key) >= attempt for key in keys)


def console_of(region: str, node: str) -> str:
    """The end of a node's console: what failed before it could write to S3 stands there."""
    try:
        answer = client("ec2", region).get_console_output(InstanceId=node)
    except ClientError as error:
        return f" (its console can't be read: {error})"
    lines = answer.get("Output", "").rstrip().splitlines()[-CONSOLE_LINES:]
    return "".join(f"\n  {line}" for line in [f"the console of {node} ends:", *lines]) if lines else ""


def _ended(outcome: Outcome) -> bool:
    """A job that ended before it was seen to start: well, or with its traceback."""
    if outcome.state == "succeeded":
        return True
    trace = f"\n{outcome.failure.traceback}" if outcome.failure else ""
    raise BringUpError(f"the job {outcome.state}: {outcome.reason}{trace}")


def tell(show: Display, event: Any) -> str:
    """Show an event; returns what it says of its node, if anything."""
    node = event.instance
    match event:
        case TaskEvent(status="failed"):
            text = f"{event.ansible_role}: {event.task}: {event.message}"
            show.line(node, f"failed: {text}")
        case TaskEvent():
            text = f"{event.ansible_role}: {event.task}"
            show.detail(node, text)
        case PlayEvent(status="started"):
            text = "configuring itself"
            show.line(node, text)
        case PlayEvent(status="rebooting"):
            text = f"rebooting: {event.message}"
            show.line(node, text)
        case PlayEvent(status="deferred"):
            text = f"waits for a reboot that would end the job: {event.message}"
            show.line(node, text)
        case PlayEvent(status="failed", message=message) if not event.seconds:
            text = f"failed before its play: {message}"
            show.line(node, text)
        case PlayEvent(status="ok"):
            text = f"configured, {event.changed} changed, {event.seconds:.1f} s"
            show.line(node, text)
        case AgentEvent():
            text = event.state.replace("_", " ") + (f", attempt {event.attempt}" if event.attempt else "")
            show.line(node, text)
        case VerificationEvent():
            text = f"check {event.check}: {event.checked.in_words()}"
            show.line(node, text)
        case VerdictEvent():
            text = f"check {event.check}: {event.text}"
            show.line("verification", text)
        case _:
            return ""
    return text
