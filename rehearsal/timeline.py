"""What the page tells beside the report: when each phase and node was where, each step's loss, what was made."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from rehearsal.adapter.graph import Deployment, Resource
from rehearsal.aws.control_models import InstanceTruth
from trainyard.aws.s3 import Bucket
from trainyard.models.events import AgentEvent, NodeEvent, PlayEvent, ServiceEvent
from trainyard.models.layout import CURRENT_RUN, HEAD_EVENTS, RunLayout
from trainyard.models.metrics import MetricLine
from trainyard.models.run import RunRecord
from trainyard.models.streams import Cursor, metric_lines, node_events

BOOTING, CONFIGURED = "booting", "configured"
_AGENT_STATES = {"workers_up": "working", "workers_done": "done"}  # the others as they are
_PLAY_STATES = {"started": "configuring", "failed": "configuration failed"}


@dataclass(frozen=True, kw_only=True)
class Span:
    """Something lasted from `start` to `end`, Unix seconds."""

    name: str
    start: float
    end: float


@dataclass(frozen=True, kw_only=True)
class NodeLine:
    """The states of one boot of a node, in their order."""

    instance: str
    role: str
    boot: str
    spans: tuple[Span, ...]


@dataclass(frozen=True, kw_only=True)
class MadeResource:
    """A resource of the program that stood when destroy began."""

    type: str
    name: str
    id: str
    seconds: float
    adopted: bool


@dataclass(kw_only=True)
class Story:
    """Empty where the run did not get so far. `metrics` is None for a job of the user's own, which leaves none."""

    phases: list[Span] = field(default_factory=list)
    nodes: list[NodeLine] = field(default_factory=list)
    metrics: list[MetricLine] | None = field(default_factory=list)
    resources: list[MadeResource] = field(default_factory=list)


def tell(
    story: Story, deployment: Deployment, instances: Iterable[InstanceTruth], region: str, now: float, *, trainer: bool
) -> None:
    """Fill in the story of a deployment that still stands. It needs no exports, so it tells of a failed `up` too.

    Raises botocore's errors and ValueError where what the nodes wrote can't be read: the story then ends there.
    """
    story.resources = [_made(one) for one in deployment.standing]
    story.metrics = [] if trainer else None
    buckets = {
        str(one.inputs.get("tags", {}).get("trainyard:role")): Bucket(one.id, region)
        for one in deployment.of_type("aws:s3/bucket:Bucket")
        if one.made
    }
    data, staging = buckets.get("data-bucket"), buckets.get("staging-bucket")
    record = staging.find(CURRENT_RUN) if staging else None
    run = RunRecord.model_validate_json(record).run if record else None
    events = list(node_events(Cursor(staging, HEAD_EVENTS))) if staging else []
    if run is not None and data is not None:
        events += node_events(Cursor(data, RunLayout(run).events))
    story.nodes = node_lines(events, instances, now)
    if trainer and run is not None and data is not None:
        story.metrics = metric_lines(data, run)


def node_lines(events: Iterable[NodeEvent], instances: Iterable[InstanceTruth], now: float) -> list[NodeLine]:
    """One line a boot, the earliest first. The last state lasts until `now` on an instance that still runs, else until
    the node's last word: how long a terminated one stayed silent is not known."""
    truth = {one.id: one for one in instances}
    boots: dict[tuple[str, str], list[NodeEvent]] = {}
    for event in sorted(events, key=lambda one: one.time):
        boots.setdefault((event.instance, event.boot), []).append(event)
    newest = dict(boots.keys())  # in order of time
    lines = []
    for (instance, boot), told in boots.items():
        known = truth.get(instance)
        first = known is not None and boot == "0001"
        start = known.launch_time if known and first else told[0].time
        runs = known is not None and known.state != "terminated" and newest[instance] == boot
        spans = _spans(told, start, now if runs else told[-1].time)
        lines.append(NodeLine(instance=instance, role=told[0].role, boot=boot, spans=tuple(spans)))
    return sorted(lines, key=lambda line: line.spans[0].start)


def _spans(events: list[NodeEvent], start: float, end: float) -> list[Span]:
    """The states that a boot went through; a state that lasted no time is left out, but for the last one."""
    found = [Span(name=BOOTING, start=start, end=start)]
    settled = CONFIGURED  # what a play leaves behind when it ends: a play may run again under a job
    for event in events:
        match event:
            case PlayEvent(status="ok"):
                state = settled
            case PlayEvent():
                state = _PLAY_STATES[event.status]
            case ServiceEvent():
                state = settled = "serving"
            case AgentEvent(state="left"):
                continue  # the end of the line, not what the node came to
            case AgentEvent():
                again = f", attempt {event.attempt}" if event.state == "workers_up" and event.attempt > 1 else ""
                state = settled = _AGENT_STATES.get(event.state, event.state.replace("_", " ")) + again
            case _:
                continue
        if state != found[-1].name:
            found[-1] = replace(found[-1], end=event.time)
            found.append(Span(name=state, start=event.time, end=event.time))
    found[-1] = replace(found[-1], end=max(end, found[-1].start))
    return [span for span in found[:-1] if span.end > span.start] + found[-1:]


def _made(resource: Resource) -> MadeResource:
    return MadeResource(
        type=resource.type,
        name=resource.name,
        id=resource.id,
        seconds=resource.seconds,
        adopted=resource.adopted,
    )
