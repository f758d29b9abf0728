"""The status of a run: its progress or outcome, deadlines, nodes, last health check, checkpoints and results."""

import time

from pydantic import Field

from trainyard.base import StrictModel
from trainyard.config.shared_settings import Market
from trainyard.models.health_check import HealthCheckResult
from trainyard.models.manifest import Manifest
from trainyard.models.metrics import MetricLine
from trainyard.models.run import Control, LaunchResult, Outcome, RunRecord
from trainyard.models.saved import SavedFiles
from trainyard.models.step_progress import format_progress, remaining_seconds
from trainyard.models.streams import metric_lines
from trainyard.operations.cluster import Cluster
from trainyard.operations.kept_nodes import describe_kept_nodes
from trainyard.operations.runs import read_run_record
from trainyard.operations.saved import format_saved, list_saved
from trainyard.operations.scheduled_launch import is_scheduled
from trainyard.operations.worker_groups import WorkerGroups
from trainyard.quantity import quantity
from trainyard.times import format_duration, format_time

MAX_LISTED_ITEMS = 5  # of the checkpoints, and of the results; `trainyard results` lists all


class GroupStatus(StrictModel):
    """One worker group of a deployed cluster."""

    name: str = Field(description="Name of the group in the stack.")
    instance_type: str = Field(description="EC2 instance type.")
    market: Market = Field(
        description="Purchase option of its instances; a capacity reservation counts as on-demand unless interruptible."
    )
    nodes_in_manifest: int = Field(description="Nodes of the group in the manifest, which a launch starts.")
    nodes: tuple[str, ...] = Field(description="Instances in it, including those that are terminating.")
    unhealthy_nodes: tuple[str, ...] = Field(
        (), description="Those of them that are marked unhealthy: no attempt uses them, and the group replaces them."
    )
    capacity_end_time: float | None = Field(
        description="Unix time at which its capacity reservation or Capacity Block ends; null: no end."
    )


class RunStatus(StrictModel):
    """`trainyard status --json`."""

    record: RunRecord = Field(description="Run record; nodes and deadlines may have changed since the launch.")
    control: Control | None = Field(description="State that the controller has published, if any.")
    outcome: Outcome | None = Field(description="Outcome of the run; null while it is active.")
    health_check: HealthCheckResult | None = Field(description="Result of the last health check, if any.")
    metric: MetricLine | None = Field(description="The last metric line.")
    saved: SavedFiles = Field(description="Checkpoints and results in the data bucket.")
    progress: str = Field("", description="Step, loss, throughput and remaining time; empty without a metric line.")
    remaining_seconds: float | None = Field(
        None, description="Estimated seconds until the last step; null: the run has ended or has no metric line."
    )
    elapsed_seconds: float = Field(
        ge=0, description="Seconds from the launch, or the scheduled start, to the run's end, or until now."
    )
    scheduled_start_time: float | None = Field(
        description="Unix time at which AWS starts the nodes of a scheduled run; null: it is not scheduled, or AWS has "
        "started its nodes."
    )
    lease_end_time: float | None = Field(
        description="Unix time at which AWS terminates the workers unless the lease is renewed; null: no lease."
    )
    groups: tuple[GroupStatus, ...] = Field(
        description="Worker groups of the cluster, when this is its current run; else empty."
    )
    nodes_usd_per_hour: float = Field(
        0.0, ge=0, description="Maximum price of the nodes in these groups, USD per hour, without head and storage."
    )


def read_status(cluster: Cluster, run: str | None) -> RunStatus:
    """Return the status of a run, the newest when `run` is None. Raises InputError when it does not exist."""
    record = read_run_record(cluster, run)
    metrics, outcome = metric_lines(cluster.data, record.run), cluster.outcome(record.run)
    current = cluster.current_run() if cluster.is_deployed else None
    workers = WorkerGroups(cluster.manifest) if current is not None and current.run == record.run else None
    control = cluster.control(record.run)
    groups = _group_statuses(cluster.manifest, workers, control) if workers else ()
    prices = {group.name: group.node_usd_per_hour for group in cluster.manifest.groups} if workers else {}
    steps = record.job.train.steps if record.job.train else 0
    return RunStatus(
        record=record,
        control=control,
        outcome=outcome,
        health_check=cluster.health_check_result(record.run),
        metric=metrics[-1] if metrics else None,
        saved=list_saved(cluster, record, outcome),
        progress=format_progress(metrics, steps, has_ended=outcome is not None),
        remaining_seconds=remaining_seconds(metrics, steps) if outcome is None else None,
        elapsed_seconds=max((outcome.ended_at if outcome else time.time()) - record.start, 0.0),
        scheduled_start_time=workers.scheduled_start() if workers and outcome is None else None,
        lease_end_time=workers.lease() if workers else None,
        groups=groups,
        nodes_usd_per_hour=sum(len(group.nodes) * prices[group.name] for group in groups),
    )


def _group_statuses(manifest: Manifest, workers: WorkerGroups, control: Control | None) -> tuple[GroupStatus, ...]:
    workers.members()  # a single response of AWS may omit a member
    members, unhealthy = workers.members_by_group(), control.unhealthy_nodes if control else ()
    return tuple(
        GroupStatus(
            name=group.name,
            instance_type=group.instance_type,
            market=group.market,
            nodes_in_manifest=group.nodes,
            nodes=tuple(members.get(group.name, ())),
            unhealthy_nodes=tuple(node for node in members.get(group.name, ()) if node in unhealthy),
            capacity_end_time=group.capacity_end_time,
        )
        for group in manifest.groups
    )


def format_status(status: RunStatus, stack: str) -> list[str]:
    """Return a status of the stack as lines for people."""
    record, outcome, control = status.record, status.outcome, status.control
    if control and control.deadline is not None:  # the end of the Capacity Block that the controller read last
        record = record.model_copy(update={"deadline": control.deadline})
    state = "scheduled" if is_scheduled(record) else "running"
    lines = [f"run {record.run}: " + (f"{outcome.state}, {outcome.reason}" if outcome else state)]
    duration = format_duration(status.elapsed_seconds)
    if outcome:
        lines.append(f"launched {format_time(record.created)}, ended after {duration}")
    elif is_scheduled(record):
        lines.append(_format_scheduled_start(record, status.scheduled_start_time, stack))
        lines.append(f"deadline {format_time(record.deadline)}")
    else:
        limit = "capacity end" if record.limited_by_capacity else "time limit"
        verb = "launched" if record.scheduled_start is None else "started"
        lines.append(f"{verb} {format_time(record.start)}, {duration} ago; {limit} {format_time(record.deadline)}")
    if not outcome and status.lease_end_time is not None:
        lines.append(f"lease until {format_time(status.lease_end_time)}, renewed while the job runs")
    if record.job.container is not None:
        lines.append(f"container image {record.job.container}")
    lines += [_format_group(group) for group in status.groups]
    if outcome and outcome.keeps_nodes(time.time()) and status.nodes_usd_per_hour:
        lines.append(describe_kept_nodes(outcome, status.nodes_usd_per_hour, stack))
    if control and control.health_check and not outcome:
        nodes = ", ".join(control.health_check.nodes)
        lines.append(f"health check {control.health_check.number} is running on {nodes}")
    if control and control.attempt:
        lines.append(_format_attempt(record, control, has_ended=outcome is not None))
    if status.health_check:
        lines += format_health_check(status.health_check)
    if status.progress:
        lines.append(status.progress)
    return lines + format_saved(status.saved, MAX_LISTED_ITEMS)


def describe_next_commands(result: LaunchResult, stack: str) -> list[str]:
    """Return the run of a launch and the commands that follow it, as lines for people."""
    return [
        f"run {result.run} is {result.state} on {quantity(len(result.nodes), 'node')}",
        f"to follow it: trainyard status -s {stack}, trainyard logs -s {stack} --follow",
    ]


def _format_scheduled_start(record: RunRecord, scheduled: float | None, stack: str) -> str:
    assert record.scheduled_start is not None
    start = format_time(record.scheduled_start)
    if scheduled is None:
        return (
            f"scheduled for {start}, but its worker groups have no scheduled action that starts nodes. To create it: "
            f"trainyard launch -s {stack}"
        )
    return f"launched {format_time(record.created)}; AWS starts {quantity(record.nodes, 'node')} at {start}"


def _format_group(group: GroupStatus) -> str:
    end_time = f", until {format_time(group.capacity_end_time)}" if group.capacity_end_time is not None else ""
    nodes = f"{len(group.nodes)} of {group.nodes_in_manifest} x {group.instance_type}"
    unhealthy = "".join(f"; {node} is marked unhealthy: no attempt uses it" for node in group.unhealthy_nodes)
    return f"group {group.name}: {nodes}, {group.market}{end_time}{unhealthy}"


def _format_attempt(record: RunRecord, control: Control, has_ended: bool) -> str:
    """Return the nodes of the attempt, and whether it has fewer than the run, or whether the next is due."""
    text = f"attempt {control.attempt} on {', '.join(control.nodes)}"
    size = f": {len(control.nodes)} of {record.nodes} nodes" if len(control.nodes) < record.nodes else ""
    if has_ended:
        return text + size
    if control.waiting_since is not None:
        since = format_time(control.waiting_since)
        return f"{text}: ended; the next attempt has not started since {since} (trainyard why)"
    return f"{text}{size} until the others are ready (trainyard why)" if size else text


def format_health_check(result: HealthCheckResult) -> list[str]:
    """Return the result of a health check as a table: one line for the whole, and one for each node."""
    lines = [f"health check {result.number}, {result.seconds:.0f} s: {result.decision}, {result.reason}"]
    return [*lines, *(f"  {node.node}: {node.describe(full=True)}" for node in result.nodes)]
