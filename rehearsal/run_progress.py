"""Follows a run from its start to its outcome, as its S3 objects tell it."""

import json
import time
from collections.abc import Callable, Iterator

from trainyard.aws.s3 import Bucket
from trainyard.models.events import TaskEvent
from trainyard.models.layout import HEAD_EVENTS, RunLayout
from trainyard.models.metrics import MetricLine
from trainyard.models.report import NotRehearsed
from trainyard.models.run import Outcome
from trainyard.models.streams import Cursor, node_events

POLL_SECONDS = 1.0
NODES_GONE_SECONDS = 120.0
SHOWN_STEPS = 10
LEFT_OUT = "Name the roles left out"  # the task of node.yml and head.yml that says so


class FollowError(RuntimeError):
    """The run did not come to an outcome."""


def follow(
    data: Bucket, run: str, *, seconds: float, failure: Callable[[], str | None], say: Callable[[str], None]
) -> Outcome:
    """Wait for the outcome, showing every tenth step. `failure` tells when waiting has no sense any more.

    Raises FollowError after `seconds`, or with what `failure` says.
    """
    layout, deadline = RunLayout(run), time.monotonic() + seconds
    metrics = Cursor(data, layout.metrics)
    while True:
        for _, line in metrics.lines():
            metric = MetricLine.model_validate_json(line)
            if metric.step == 1 or metric.step % SHOWN_STEPS == 0:
                held_out = "" if metric.validation_loss is None else f", held out {metric.validation_loss:.4f}"
                say(f"step {metric.step}: loss {metric.loss:.4f}{held_out}, {metric.speed}")
        found = data.find(layout.outcome)
        if found is not None:
            return Outcome.model_validate_json(found)
        if broken := failure():
            raise FollowError(broken)
        if time.monotonic() > deadline:
            raise FollowError(f"run {run} came to no outcome within {seconds:.0f} s")
        time.sleep(POLL_SECONDS)


def until(what: str, done: Callable[[], bool], seconds: float) -> None:
    """Poll until `done`; FollowError with what was waited for after `seconds`."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise FollowError(f"{what} did not come within {seconds:.0f} s")
        time.sleep(0.2)


def skipped_roles(
    data: Bucket, staging: Bucket, run: str | None, why: Callable[[str], str | None]
) -> list[NotRehearsed]:
    """Roles that nodes left out, as their plays said, for the reasons that `why` knows."""
    found: dict[str, NotRehearsed] = {}
    for event in _task_events(data, staging, run):
        if event.task == LEFT_OUT and event.status == "ok":
            for name in json.loads(event.message):
                what = f"role {name} on a {event.role}"
                if (reason := why(name)) is not None:
                    found.setdefault(what, NotRehearsed(what=what, why=reason))
    return list(found.values())


def _task_events(data: Bucket, staging: Bucket, run: str | None) -> Iterator[TaskEvent]:
    streams = [Cursor(staging, HEAD_EVENTS)]
    if run is not None:
        streams.append(Cursor(data, RunLayout(run).events))
    for stream in streams:
        for event in node_events(stream):
            if isinstance(event, TaskEvent):
                yield event
