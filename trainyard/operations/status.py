"""How a run stands: its end or what it is at, its deadlines, its nodes."""

import time

from pydantic import Field

from trainyard.base import Contract
from trainyard.models.health_check import Verification
from trainyard.models.manifest import Manifest, Market
from trainyard.models.metrics import MetricLine
from trainyard.models.run import Control, Outcome, RunRecord
from trainyard.models.streams import metric_lines
from trainyard.operations.cluster import Cluster
from trainyard.operations.run_record import moment
from trainyard.operations.runs import find_run
from trainyard.operations.worker_groups import Workers


class GroupStatus(Contract):
    """One worker group of a cluster that is up."""

    name: str = Field(description="Name of the group in the stack.")
    instance_type: str = Field(description="EC2 instance type.")
    market: Market = Field(description="How its capacity is had; a capacity reservation counts as on-demand.")
    wanted: int = Field(description="Nodes that a launch starts.")
    nodes: tuple[str, ...] = Field(description="Instances in it, leaving ones included.")
    ends: float | None = Field(description="Unix time at which AWS takes its capacity away; none: never.")


class RunStatus(Contract):
    """`trainyard status --json`."""

    record: RunRecord = Field(description="What was launched.")
    control: Control | None = Field(description="What the controller orders; none before nodes gathered.")
    outcome: Outcome | None = Field(description="How it ended; none while it runs.")
    verification: Verification | None = Field(description="The last check of its nodes; none before there was one.")
    metric: MetricLine | None = Field(description="The last metric line.")
    elapsed_seconds: float = Field(ge=0, description="Seconds from the launch to the run's end, or until now.")
    lease_ends: float | None = Field(
        description="Unix time at which AWS ends the workers unless the lease is moved; none: no cluster, or no lease."
    )
    groups: tuple[GroupStatus, ...] = Field(description="Worker groups of the cluster that the run is on; else none.")


def status_of(cluster: Cluster, run: str | None) -> RunStatus:
    """How the run named stands, or the newest. Raises InputError where there is none."""
    record = find_run(cluster, run)
    metrics, outcome = metric_lines(cluster.data, record.run), cluster.outcome(record.run)
    current = cluster.current_run() if cluster.is_up else None
    workers = Workers(cluster.manifest) if current is not None and current.run == record.run else None
    return RunStatus(
        record=record,
        control=cluster.control(record.run),
        outcome=outcome,
        verification=cluster.verification(record.run),
        metric=metrics[-1] if metrics else None,
        elapsed_seconds=max((outcome.ended if outcome else time.time()) - record.created, 0.0),
        lease_ends=workers.lease() if workers else None,
        groups=_groups(cluster.manifest, workers) if workers else (),
    )


def _groups(manifest: Manifest, workers: Workers) -> tuple[GroupStatus, ...]:
    members = workers.members_by_group()
    return tuple(
        GroupStatus(
            name=group.name,
            instance_type=group.instance_type,
            market=group.market,
            wanted=group.nodes,
            nodes=tuple(members.get(group.name, ())),
            ends=group.ends,
        )
        for group in manifest.groups
    )


def in_words(found: RunStatus) -> list[str]:
    """A status as lines for people."""
    record, outcome = found.record, found.outcome
    lines = [f"run {record.run}: " + (f"{outcome.state}, {outcome.reason}" if outcome else "running")]
    took = f"{found.elapsed_seconds / 60:.0f} minutes"
    if outcome:
        lines.append(f"launched {moment(record.created)}, took {took}")
    else:
        limit = "its capacity ends" if record.cut_short else "time limit"
        lines.append(f"launched {moment(record.created)}, {took} ago; {limit} {moment(record.deadline)}")
        if found.lease_ends is not None:
            lines.append(f"lease until {moment(found.lease_ends)}, moved forward while the job lives")
    for group in found.groups:
        ends = f", until {moment(group.ends)}" if group.ends is not None else ""
        lines.append(
            f"group {group.name}: {len(group.nodes)} of {group.wanted} x {group.instance_type}, {group.market}{ends}"
        )
    if found.control and found.control.check and not outcome:
        lines.append(f"check {found.control.check.number} runs on {', '.join(found.control.check.nodes)}")
    if found.control and found.control.attempt:
        lines.append(f"attempt {found.control.attempt} on {', '.join(found.control.nodes)}")
    if found.verification:
        lines += verification_in_words(found.verification)
    if found.metric:
        lines.append(f"step {found.metric.step}, loss {found.metric.loss:.4f}, {found.metric.speed}")
    return lines


def verification_in_words(check: Verification) -> list[str]:
    """The last check as a table: a line for it, and one for each node."""
    lines = [f"check {check.number} of the nodes, {check.seconds:.0f} s: {check.verdict}, {check.reason}"]
    return [*lines, *(f"  {one.node}: {one.in_words(full=True)}" for one in check.nodes)]
