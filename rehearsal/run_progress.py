"""Follows a run until its outcome, by reading its objects in S3."""

import json
import time
from collections.abc import Callable, Iterator

from trainyard.aws.s3 import Bucket
from trainyard.models.decision import AttemptDecision, AttemptStart
from trainyard.models.events import TaskEvent
from trainyard.models.layout import HEAD_EVENTS, RunLayout
from trainyard.models.metrics import MetricLine
from trainyard.models.report import NotRehearsed
from trainyard.models.run import Outcome
from trainyard.models.step_progress import format_progress
from trainyard.models.streams import Cursor, new_metrics, node_events

POLL_SECONDS = 1.0
TERMINATION_TIMEOUT_SECONDS = 120.0
LOGGED_STEPS = 10
SKIPPED_ROLES_TASK = "List the skipped roles"  # a task of playbooks/node.yml and playbooks/head.yml


class FollowError(RuntimeError):
    """The run has no outcome: the timeout expired, or the hypervisor failed."""


def follow_run(
    data: Bucket,
    run: str,
    *,
    steps: int | None,
    timeout_seconds: float,
    failure: Callable[[], str | None],
    log: Callable[[str], None],
    show: Callable[[str], None],
) -> Outcome:
    """Wait for the outcome of the run; log its attempts, why they failed, and every tenth step; show the last step.

    `steps`: optimizer steps of the built-in trainer; None: a custom job. `failure` returns the reason once the run can
    no longer end. Raises FollowError with that reason, or when `timeout_seconds` have passed.
    """
    layout, deadline = RunLayout(run), time.monotonic() + timeout_seconds
    cursor, metrics, attempts = Cursor(data, layout.metrics), list[MetricLine](), AttemptLines(data, layout)
    show("waiting for the end of the job" if steps is None else "waiting for the first step")
    while True:
        for text in attempts.new_lines():
            log(text)
        for metric in new_metrics(cursor):
            metrics.append(metric)
            show(progress := format_progress(metrics, steps or 0))
            if metrics[-1].step == 1 or metrics[-1].step % LOGGED_STEPS == 0:
                log(progress)
        outcome = data.find(layout.outcome)
        if outcome is not None:
            return Outcome.model_validate_json(outcome)
        if reason := failure():
            raise FollowError(reason)
        if time.monotonic() > deadline:
            raise FollowError(f"run {run} has no outcome after {timeout_seconds:.0f} s")
        time.sleep(POLL_SECONDS)


class AttemptLines:
    """Sentences about the attempts of a run: on which nodes they start, and why they fail."""

    def __init__(self, data: Bucket, layout: RunLayout) -> None:
        self._data, self._layout = data, layout
        self._last_start = self._last_decision = ""
        self._previous: AttemptStart | None = None

    def new_lines(self) -> list[str]:
        """Return the sentences since the last call, in the order of time."""
        lines: list[tuple[float, str]] = []
        for key in self._data.keys(self._layout.decisions, self._last_decision):
            decision, self._last_decision = AttemptDecision.model_validate_json(self._data.read(key)), key
            if decision.end_reason is None:  # else the outcome has the reason
                lines.append((decision.time, f"attempt {decision.attempt} failed: {decision.summary()}"))
        for key in self._data.keys(self._layout.attempt_starts, self._last_start):
            start, self._last_start = AttemptStart.model_validate_json(self._data.read(key)), key
            lines.append((start.time, start.describe(self._previous, None)))
            self._previous = start
        return [text for _, text in sorted(lines)]


def wait_until(description: str, condition: Callable[[], bool], timeout_seconds: float) -> None:
    """Poll until `condition` is true. Raises FollowError with the description after `timeout_seconds`."""
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        if time.monotonic() > deadline:
            raise FollowError(f"timed out after {timeout_seconds:.0f} s waiting for {description}")
        time.sleep(0.2)


def skipped_roles(
    data: Bucket, staging: Bucket, run: str | None, reason: Callable[[str], str | None]
) -> list[NotRehearsed]:
    """Return the roles that the nodes' playbooks skipped, according to their events.

    `reason` returns why a role is skipped, or None for a role that the stack itself skips.
    """
    skipped: dict[str, NotRehearsed] = {}
    for event in _task_events(data, staging, run):
        if event.task == SKIPPED_ROLES_TASK and event.status == "ok":
            for name in json.loads(event.message):
                subject = f"role {name} on a {event.role}"
                if (explanation := reason(name)) is not None:
                    skipped.setdefault(subject, NotRehearsed(subject=subject, reason=explanation))
    return list(skipped.values())


def _task_events(data: Bucket, staging: Bucket, run: str | None) -> Iterator[TaskEvent]:
    streams = [Cursor(staging, HEAD_EVENTS)]
    if run is not None:
        streams.append(Cursor(data, RunLayout(run).events))
    for stream in streams:
        for event in node_events(stream):
            if isinstance(event, TaskEvent):
                yield event
