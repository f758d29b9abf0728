"""Data of the HTML page in addition to the report: phases, node states, metrics, created resources."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from rehearsal.adapter.deployment import Deployment, Resource
from rehearsal.aws.control_models import InstanceRecord
from rehearsal.run_records import RunRecords, read_run_records
from trainyard.aws import tags
from trainyard.aws.s3 import Bucket
from trainyard.models.events import AgentEvent, NodeEvent, PlaybookEvent, ServiceEvent
from trainyard.models.layout import CURRENT_RUN, HEAD_EVENTS, RunLayout
from trainyard.models.metrics import MetricLine
from trainyard.models.run import RunRecord
from trainyard.models.streams import Cursor, node_events

BOOTING, CONFIGURED = "booting", "configured"
TERMINATED_EARLY = "terminated before its first event"
_AGENT_STATES = {"workers_up": "working", "workers_done": "done"}  # other states keep their names
_PLAYBOOK_STATES = {"started": "configuring", "failed": "configuration failed"}


@dataclass(frozen=True, kw_only=True)
class Span:
    """A named time span. `start` and `end` are Unix times in seconds."""

    name: str
    start: float
    end: float


@dataclass(frozen=True, kw_only=True)
class NodeTimeline:
    """The states of one boot of a node, in order."""

    instance: str
    role: str
    boot: str
    spans: tuple[Span, ...]

    @property
    def has_run(self) -> bool:
        """Whether the node wrote an event."""
        return len(self.spans) > 1 or self.spans[0].name not in (BOOTING, TERMINATED_EARLY)


@dataclass(frozen=True, kw_only=True)
class CreatedResource:
    """A resource of the Pulumi program that existed when destroy started. `seconds`: how long its creation took."""

    type: str
    name: str
    id: str
    seconds: float
    imported: bool


@dataclass(kw_only=True)
class Timeline:
    """The data of the page's charts and tables, and the records of the run; empty where it did not get that far.

    `metrics` is None for a custom job, which writes no metric lines.
    """

    phases: list[Span] = field(default_factory=list)
    nodes: list[NodeTimeline] = field(default_factory=list)
    metrics: list[MetricLine] | None = field(default_factory=list)
    resources: list[CreatedResource] = field(default_factory=list)
    records: RunRecords | None = None


def fill_timeline(
    timeline: Timeline,
    deployment: Deployment,
    instances: Sequence[InstanceRecord],
    region: str,
    now: float,
    *,
    trainer: bool,
) -> str | None:
    """Fill in nodes, metrics and resources, before the deployment is destroyed. Returns the run id; None without a run.

    It does not use the stack outputs, so it also works after a failed `up`. `now` is a Unix time in seconds. `trainer`:
    whether the job is the built-in trainer. Raises botocore's errors and ValueError when the nodes' objects in S3
    cannot be read; the timeline is then incomplete.
    """
    timeline.resources = [_created_resource(resource) for resource in deployment.existing_resources]
    timeline.metrics = [] if trainer else None
    buckets = {
        str(bucket.inputs.get("tags", {}).get("trainyard:role")): Bucket(bucket.id, region)
        for bucket in deployment.resources_of_type("aws:s3/bucket:Bucket")
        if bucket.exists
    }
    data, staging = buckets.get("data-bucket"), buckets.get("staging-bucket")
    record = staging.find(CURRENT_RUN) if staging else None
    run = RunRecord.model_validate_json(record).run if record else None
    events = list(node_events(Cursor(staging, HEAD_EVENTS))) if staging else []
    if run is not None and data is not None:
        events += node_events(Cursor(data, RunLayout(run).events))
    timeline.nodes = node_timelines(events, instances, now)
    if trainer and run is not None and data is not None:
        timeline.records = read_run_records(data, run, instances)
        timeline.metrics = timeline.records.final_lines
    return run


def node_timelines(events: Iterable[NodeEvent], instances: Iterable[InstanceRecord], now: float) -> list[NodeTimeline]:
    """Return one timeline per boot, the earliest first. `instances`: all of the stack, also those without an event.

    The last state ends at `now` if the instance still runs. Otherwise it ends at the node's last event, since it is not
    known how long the node ran after that.
    """
    records = {instance.id: instance for instance in instances}
    boots: dict[tuple[str, str], list[NodeEvent]] = {}
    for event in sorted(events, key=lambda event: event.time):
        boots.setdefault((event.instance, event.boot), []).append(event)
    last_boots = dict(boots.keys())  # boots are in order of time
    timelines = [_timeline_without_events(records[name], now) for name in records.keys() - last_boots.keys()]
    for (instance, boot), boot_events in boots.items():
        record = records.get(instance)
        is_first_boot = record is not None and boot == "0001"
        start = record.launch_time if record and is_first_boot else boot_events[0].time
        is_running = record is not None and record.state != "terminated" and last_boots[instance] == boot
        spans = _spans(boot_events, start, now if is_running else boot_events[-1].time)
        timelines.append(NodeTimeline(instance=instance, role=boot_events[0].role, boot=boot, spans=tuple(spans)))
    return sorted(timelines, key=lambda timeline: timeline.spans[0].start)


def _timeline_without_events(record: InstanceRecord, now: float) -> NodeTimeline:
    """Return the timeline of an instance without an event, such as one that a rollback terminated."""
    is_terminated = record.terminated_time is not None
    span = Span(
        name=TERMINATED_EARLY if is_terminated else BOOTING,
        start=record.launch_time,
        end=now if record.terminated_time is None else record.terminated_time,
    )
    role = record.tags.get(tags.ROLE, "instance")
    if record.autoscaling_group and role != "head":  # the role of workers is the name of their group
        role = "worker"
    return NodeTimeline(instance=record.id, role=role, boot="0001", spans=(span,))


def _spans(events: list[NodeEvent], start: float, end: float) -> list[Span]:
    """Return the states of one boot. States of zero length are omitted, except the last state."""
    spans = [Span(name=BOOTING, start=start, end=start)]
    base_state = CONFIGURED  # the state after a playbook run ends: a playbook may run again while a job runs
    for event in events:
        match event:
            case PlaybookEvent(status="ok"):
                state = base_state
            case PlaybookEvent():
                state = _PLAYBOOK_STATES[event.status]
            case ServiceEvent():
                state = base_state = "serving"
            case AgentEvent(state="drained" | "stopped"):
                continue  # keep the last working state
            case AgentEvent():
                suffix = f", attempt {event.attempt}" if event.state == "workers_up" and event.attempt > 1 else ""
                state = base_state = _AGENT_STATES.get(event.state, event.state.replace("_", " ")) + suffix
            case _:
                continue
        if state != spans[-1].name:
            spans[-1] = replace(spans[-1], end=event.time)
            spans.append(Span(name=state, start=event.time, end=event.time))
    spans[-1] = replace(spans[-1], end=max(end, spans[-1].start))
    return [span for span in spans[:-1] if span.end > span.start] + spans[-1:]


def _created_resource(resource: Resource) -> CreatedResource:
    return CreatedResource(
        type=resource.type,
        name=resource.name,
        id=resource.id,
        seconds=resource.seconds,
        imported=resource.imported,
    )
