"""The nodes of an earlier run that a new run uses: they were kept after its end, or its job is stopped for the new run.

Until the new run exists, the outcome of the earlier run has the time for which the controller keeps its nodes.
"""

import time
from dataclasses import dataclass, field

from trainyard.models.events import AgentEvent
from trainyard.models.layout import RunLayout
from trainyard.models.manifest import Manifest
from trainyard.models.run import Control, NodeChange, Outcome, RunRecord, find_node_change
from trainyard.models.streams import Cursor, node_events
from trainyard.operations.cluster import Cluster
from trainyard.operations.errors import DeadlineError
from trainyard.operations.progress import Display
from trainyard.operations.startup import Deadline
from trainyard.operations.worker_groups import WorkerGroups
from trainyard.quantity import quantity
from trainyard.times import format_time

# The controller terminates kept nodes at the end of their time: a launch does not use them shortly before.
MARGIN_SECONDS = 30.0
# A node saves a checkpoint for up to 10 minutes, and torchrun stops within 40 s (trainyard/node/agent).
STOP_MINUTES = 12.0


@dataclass
class KeptNodes:
    """Nodes of the run `earlier` that a new run uses.

    `change`: what the new run changes on them. `nodes`: group -> nodes. `healthy`: those that need no health check.
    """

    earlier: RunRecord
    change: NodeChange
    nodes: dict[str, list[str]] = field(default_factory=dict)
    healthy: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """The nodes of all groups."""
        return [name for nodes in self.nodes.values() for name in nodes]

    def describe(self) -> str:
        """Return what the new run does on the nodes."""
        count = quantity(len(self.names), "node")
        if self.change == "software":
            return f"the node playbook runs again on {count} of run {self.earlier.run}: {', '.join(self.names)}"
        check = "" if set(self.names) <= set(self.healthy) else ", after a health check"
        return f"the job starts on {count} of run {self.earlier.run}{check}: {', '.join(self.names)}"


def describe_kept_nodes(outcome: Outcome, usd_per_hour: float, stack: str) -> str:
    """Return until when the nodes of a run that has ended are kept, what they cost, and how to use or end them."""
    assert outcome.nodes_kept_until is not None
    return (
        f"the nodes are kept until {format_time(outcome.nodes_kept_until)} (job.keep_nodes_minutes) and cost "
        f"{usd_per_hour:,.2f} USD per hour. To start a job on them: trainyard run -s {stack}, or trainyard up -s "
        f"{stack}; to terminate them: trainyard stop -s {stack}"
    )


class KeptNodesOperation:
    """Takes the nodes of an earlier run for a new run of `manifest`, and releases them if its launch fails."""

    def __init__(self, cluster: Cluster, manifest: Manifest, workers: WorkerGroups, display: Display) -> None:
        self._cluster, self._manifest, self._workers, self._display = cluster, manifest, workers, display
        self._outcome_before: Outcome | None = None
        self._run: RunRecord | None = None

    def can_take(self, run: RunRecord, *, is_active: bool) -> bool:
        """Return whether the new run can use nodes of `run`."""
        if find_node_change(run, self._manifest) == "instances" or run.scheduled_start is not None:
            return False
        outcome = self._cluster.outcome(run.run)
        return is_active if outcome is None else outcome.keeps_nodes(time.time() + MARGIN_SECONDS)

    def take(self, run: RunRecord, keep_minutes: float, container: str | None) -> KeptNodes | None:
        """Stop the job of `run` if it is active, and keep its nodes for `keep_minutes`, for the start of the new run.

        `container`: image of the new run by digest.
        Terminates the nodes that the new run does not need, and those that do not stop the job in time. None: the run
        has ended meanwhile, and the controller terminates its nodes.
        """
        self._run, control = run, self._cluster.control(run.run) or Control()
        self._outcome_before = self._cluster.outcome(run.run)
        cursor = Cursor(self._cluster.data, RunLayout(run.run).events)
        cursor.skip_existing()
        if not self._keep_until(time.time() + (keep_minutes + STOP_MINUTES) * 60):
            self._run = None
            return None
        usable = set(self._in_service()) - set(control.unhealthy_nodes)
        if self._outcome_before is None and control.attempt:
            stopped = self._wait_for_stop(usable & set(control.nodes), cursor)
            usable &= stopped & set(self._in_service())  # a node may have been interrupted meanwhile
        kept = KeptNodes(run, find_node_change(run, self._manifest, container))
        members = self._workers.members_by_group()
        for group in self._manifest.groups:
            present = [name for name in members.get(group.name, ()) if name in usable]
            # Those of the last attempt first: other members have not run the job.
            kept.nodes[group.name] = sorted(present, key=lambda name: name not in control.nodes)[: group.nodes]
        is_same_environment = run.job.environment == self._manifest.job.environment
        has_failed = self._outcome_before is not None and self._outcome_before.state == "failed"
        if kept.change == "none" and is_same_environment and not has_failed:
            kept.healthy = tuple(name for name in kept.names if name in control.healthy_nodes)
        surplus = [name for names in members.values() for name in names if name not in kept.names]
        if surplus:
            self._workers.terminate(surplus, self._display)
            self._display.line("nodes", f"terminated, because the new run does not use them: {', '.join(surplus)}")
        return kept

    def remove_lost(self, kept: KeptNodes) -> None:
        """Remove nodes that have left their group from `kept`: the new run launches others."""
        in_service = set(self._in_service())
        if lost := [name for name in kept.names if name not in in_service]:
            self._display.line("nodes", f"no longer in service, so that the new run launches others: {', '.join(lost)}")
        kept.nodes = {group: [name for name in names if name in in_service] for group, names in kept.nodes.items()}
        kept.healthy = tuple(name for name in kept.healthy if name in in_service)

    def _in_service(self) -> list[str]:
        """Return the instances in service, from two responses of Auto Scaling: one may omit an instance."""
        states = self._workers.lifecycle_states() | self._workers.lifecycle_states()
        return [name for name, state in states.items() if state == "InService"]

    def _keep_until(self, until: float) -> bool:
        """Record until when the nodes of the earlier run are kept; return False when it has ended without them.

        The controller may record the end of the run at the same time: its outcome then remains.
        """
        assert self._run is not None
        key = RunLayout(self._run.run).outcome
        if self._outcome_before is None:
            control = self._cluster.control(self._run.run)
            outcome = Outcome(
                state="stopped",
                reason="another run replaces it",
                attempts=control.attempt if control else 0,
                ended_at=time.time(),
                nodes_kept_until=until,
                keeps_reservations=True,
            )
            if self._cluster.data.create(key, outcome.model_dump_json().encode()):
                return True
            self._outcome_before = self._cluster.outcome(self._run.run)
        before = self._outcome_before
        if before is None or not before.keeps_nodes(time.time() + MARGIN_SECONDS):
            return False
        self._cluster.data.write(key, before.model_copy(update={"nodes_kept_until": until}).model_dump_json().encode())
        return True

    def _wait_for_stop(self, nodes: set[str], cursor: Cursor) -> set[str]:
        """Wait until the agents of these nodes have stopped the job; return the nodes that have."""
        stopped: set[str] = set()

        def have_stopped() -> bool:
            for event in node_events(cursor):
                if isinstance(event, AgentEvent) and event.state == "stopped":
                    stopped.add(event.instance)
            return nodes <= stopped

        try:
            Deadline(STOP_MINUTES, None).wait_until("the end of the earlier job", have_stopped)
        except DeadlineError as error:
            self._display.line("nodes", f"{error}: {', '.join(sorted(nodes - stopped))}")
        return stopped

    def release(self, keep_minutes: float) -> None:
        """Keep the nodes for `keep_minutes` from now, or until the time before `take` if that is later.

        For a launch that failed before it created its run.
        """
        outcome = self._cluster.outcome(self._run.run) if self._run is not None else None
        if self._run is None or outcome is None:
            return
        before = (self._outcome_before.nodes_kept_until if self._outcome_before else None) or 0.0
        changes: dict[str, object] = {"nodes_kept_until": max(before, time.time() + keep_minutes * 60)}
        if self._outcome_before is None:  # the controller cancels the reservations with the nodes
            changes |= {"keeps_reservations": False, "launch_failed": True}
        content = outcome.model_copy(update=changes).model_dump_json()
        self._cluster.data.write(RunLayout(self._run.run).outcome, content.encode())
