"""Startup of nodes: follow the events that they write to S3 until the job runs or a node fails."""

import time
from collections.abc import Callable
from typing import Any

from botocore.exceptions import ClientError

from trainyard.aws.ec2 import console_output
from trainyard.models.events import (
    AgentEvent,
    HealthCheckEvent,
    HealthCheckResultEvent,
    PlaybookEvent,
    TaskEvent,
)
from trainyard.models.layout import RunLayout, chunk_attempt
from trainyard.models.run import Outcome, RunRecord
from trainyard.models.startup_failures import NO_EVENTS_TIMEOUT_SECONDS, PlaybookFailures
from trainyard.models.streams import Cursor, node_events
from trainyard.operations.cluster import Cluster
from trainyard.operations.errors import DeadlineError, StartupError
from trainyard.operations.progress import Display
from trainyard.quantity import quantity

POLL_SECONDS = 1.0
NO_EVENTS = "no events received"
CONSOLE_LINES = 20
# The controller decides within seconds, or minutes after a restart of the head.
CONTROLLER_REACTION_SECONDS = 300.0
LINE_CHARACTERS = 160


class Deadline:
    """A time limit of `minutes` from now. `key`: the setting or option that sets it; None: it is fixed."""

    def __init__(self, minutes: float, key: str | None = "launch.startup_timeout_minutes") -> None:
        self.minutes, self.key = minutes, key
        self.at = time.time() + minutes * 60  # Unix time

    def wait_until(self, event: str, has_happened: Callable[[], bool]) -> None:
        """Poll until `has_happened` returns True. Raises DeadlineError, which names `event`, after the time limit."""
        while not has_happened():
            if time.time() > self.at:
                source = f" ({self.key})" if self.key else ""
                raise DeadlineError(
                    f"timeout after {quantity(self.minutes, 'minute')}{source} while waiting for {event}"
                )
            time.sleep(POLL_SECONDS)


class NodeStartup:
    """Startup of a run's new nodes.

    In a run that is active, create it before they are launched: it ignores older events. `is_new`: the run has none.
    """

    def __init__(
        self, cluster: Cluster, display: Display, deadline: Deadline, run: str, *, is_new: bool = False
    ) -> None:
        self._cluster, self._display, self._deadline, self._run = cluster, display, deadline, run
        self._cursor = Cursor(cluster.data, RunLayout(run).events)
        if not is_new:
            self._cursor.skip_existing()
        self._nodes: list[str] = []
        self._last_status: dict[str, str] = {}
        self._ready_agents: set[str] = set()
        self._running_nodes: dict[int, set[str]] = {}  # by attempt
        self._failures = PlaybookFailures()
        # The controller of a new run replaces nodes that fail, or ends the run.
        self._reaction_seconds = CONTROLLER_REACTION_SECONDS if is_new else 0.0
        self._failed_at: dict[tuple[str, str], float] = {}  # (instance, boot) -> monotonic time
        self._replaced: set[str] = set()
        timeout = min(NO_EVENTS_TIMEOUT_SECONDS + self._reaction_seconds, deadline.minutes * 60)
        self._no_events_deadline = time.time() + timeout

    def expect(self, nodes: list[str]) -> None:
        """Set the launched nodes, whose events are awaited."""
        self._nodes = nodes
        self._last_status = dict.fromkeys(nodes, NO_EVENTS)

    def wait_for_agents(self) -> None:
        """Wait until every new node is configured and its agent has reported."""

        def are_ready() -> bool:
            if outcome := self._poll():
                raise StartupError(f"the run has {outcome.state} before the new nodes were ready: {outcome.reason}")
            return self._ready_agents >= set(self._nodes)

        self._wait_until("the new nodes' agents", are_ready)

    def wait_for_job(self, nodes: int, after: int = 0) -> None:
        """Wait until the workers of `nodes` nodes run in an attempt later than attempt `after`.

        For the built-in trainer, also wait for a metric line of that attempt; a user's job writes none.
        """

        def has_started() -> bool:
            if outcome := self._poll():
                return _has_succeeded(outcome)
            attempts = [number for number, up in self._running_nodes.items() if number > after and len(up) == nodes]
            return bool(attempts) and (self._cluster.manifest.job.train is None or self._has_metrics(max(attempts)))

        self._wait_until("the job's start", has_started)

    def _wait_until(self, event: str, has_happened: Callable[[], bool]) -> None:
        self._display.detail("startup", f"waiting for {event}")
        try:
            self._deadline.wait_until(event, has_happened)
        except DeadlineError as error:
            states = "; ".join(f"{node}: {status}" for node, status in self._last_status.items())
            raise DeadlineError(f"{error}. Last status of each node: {states}") from None

    def _poll(self) -> Outcome | None:
        """Handle new events; return the run's outcome when it has one. Raises StartupError for a node that failed."""
        for event in sorted(node_events(self._cursor), key=lambda event: event.time):
            self._handle(event)
            if event.instance not in self._replaced and self._failures.is_final(event.instance, event.boot):
                self._failed_at.setdefault((event.instance, event.boot), time.monotonic())
        outcome = self._cluster.outcome(self._run)
        if outcome is None:
            self._check_failed_nodes()
        silent = [node for node, status in self._last_status.items() if status == NO_EVENTS]
        if outcome is None and silent and time.time() > self._no_events_deadline:
            minutes = round(NO_EVENTS_TIMEOUT_SECONDS / 60)
            console = describe_console(self._cluster.region, silent[0])
            raise StartupError(
                f"no events received from {', '.join(silent)} within {quantity(minutes, 'minute')} of launch{console}"
            )
        return outcome

    def _check_failed_nodes(self) -> None:
        """Display the nodes that the controller replaces. Raises StartupError for a failed node that it does not."""
        control = self._cluster.control(self._run) if self._failed_at else None
        for (node, boot), failed_at in list(self._failed_at.items()):
            if control is not None and node in control.failed_startups:
                self._display.line(node, "its startup failed: the controller replaces it")
                del self._failed_at[node, boot]
                self._last_status[node] = "replaced"
                self._replaced.add(node)
            elif time.monotonic() >= failed_at + self._reaction_seconds:
                message = self._failures.messages[node, boot]
                raise StartupError(f"node {node} could not be configured: {message}")

    def _handle(self, event: Any) -> None:
        node = event.instance
        self._failures.handle(event)
        if isinstance(event, AgentEvent):
            self._ready_agents.add(node)
            if event.state in {"workers_up", "workers_done"}:
                self._running_nodes.setdefault(event.attempt, set()).add(node)
        text = display_event(self._display, event)
        if text and node not in self._replaced:
            self._last_status[node] = text

    def _has_metrics(self, attempt: int) -> bool:
        """Return whether a metric line of this attempt or a later one exists."""
        keys = self._cluster.data.keys(RunLayout(self._run).metrics)
        return any(chunk_attempt(key) >= attempt for key in keys)


def follow_startup(cluster: Cluster, display: Display, run: RunRecord) -> None:
    """Wait until the job of the run has started, as a launch does that waits.

    Raises StartupError if the run has failed or a node has, DeadlineError after the startup timeout.
    """
    minutes = run.limits.startup_timeout_minutes + max(0.0, run.start - time.time()) / 60
    startup = NodeStartup(cluster, display, Deadline(minutes), run.run, is_new=True)
    startup.wait_for_job(run.nodes)


def describe_console(region: str, node: str) -> str:
    """Return the last lines of a node's console: it shows failures before the node could write to S3."""
    try:
        output = console_output(region, node)
    except ClientError as error:
        return f" (the console of {node} cannot be read: {error})"
    lines = output.rstrip().splitlines()[-CONSOLE_LINES:]
    return "".join(f"\n  {line}" for line in [f"last lines of the console of {node}:", *lines]) if lines else ""


def _has_succeeded(outcome: Outcome) -> bool:
    """Return True for a job that succeeded before its start was observed; raise StartupError for one that failed."""
    if outcome.state == "succeeded":
        return True
    raise StartupError(outcome.describe())


def describe_task(event: TaskEvent) -> str:
    """Return role and name of a task."""
    return f"{event.ansible_role}: {event.task}" if event.ansible_role else event.task


def shorten(message: str) -> str:
    """Return the first line of an error message, shortened: the error of the command has all of it."""
    line = message.strip().partition("\n")[0]
    return line if len(line) <= LINE_CHARACTERS else f"{line[:LINE_CHARACTERS]} ..."


def display_event(display: Display, event: Any) -> str:
    """Display a node event; return the status of the node, empty when the event has none."""
    node = event.instance
    match event:
        case TaskEvent(status="failed"):
            text = f"{describe_task(event)}: {event.message}"
            display.line(node, f"failed: {shorten(text)}")
        case TaskEvent():
            text = describe_task(event)
            display.detail(node, text)
        case PlaybookEvent(status="started"):
            text = "node playbook started"
            display.line(node, text)
        case PlaybookEvent(status="rebooting"):
            text = f"rebooting: {event.message}"
            display.line(node, text)
        case PlaybookEvent(status="deferred"):
            text = f"reboot deferred because it would end the job: {event.message}"
            display.line(node, text)
        case PlaybookEvent(status="failed", message=message) if not event.seconds:
            text = f"failed before the node playbook started: {message}"
            display.line(node, shorten(text))
        case PlaybookEvent(status="ok"):
            text = f"configured, {event.changed} changed, {event.seconds:.1f} s"
            display.line(node, text)
        case AgentEvent():
            text = event.state.replace("_", " ") + (f", attempt {event.attempt}" if event.attempt else "")
            display.line(node, text)
        case HealthCheckEvent():
            text = f"health check {event.number}: {event.node_result.describe()}"
            display.line(node, text)
        case HealthCheckResultEvent():
            text = f"health check {event.number}: {event.text}"
            display.line("controller", text)
        case _:
            return ""
    return text
