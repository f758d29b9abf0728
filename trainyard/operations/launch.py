"""The launch: prepare job and dataset, wait for the head, create a run, start all nodes or none, wait for the job.

A run uses the nodes of an earlier run that were kept: kept_nodes.py. Before the launch adds nodes, it creates the
lease, a scheduled action of each worker group: AWS terminates the workers even if the operator's process and the
controller fail. Nodes that the manifest adds to the current run join it: scale_out.py.
"""

import time
from dataclasses import dataclass
from typing import Any

from trainyard.models.layout import RunLayout
from trainyard.models.run import Control, LaunchResult, Outcome, RunRecord, launch_trigger
from trainyard.operations.cluster import Cluster
from trainyard.operations.container_image import resolve_container_image
from trainyard.operations.dataset import ensure_dataset
from trainyard.operations.errors import CapacityError, LaunchError
from trainyard.operations.head import wait_for_head
from trainyard.operations.job_source import prepare_source, store_lock
from trainyard.operations.kept_nodes import KeptNodes, KeptNodesOperation
from trainyard.operations.launch_messages import describe_remaining_cost
from trainyard.operations.launch_operation import LaunchOperation
from trainyard.operations.prestart_checks import check_before_start
from trainyard.operations.progress import Display
from trainyard.operations.resume import find_newest_checkpoint
from trainyard.operations.run_record import (
    create_run_record,
    format_run_duration,
    require_capacity_time,
    with_deadlines,
)
from trainyard.operations.scale_out import missing_nodes, scale_out_run
from trainyard.operations.scheduled_launch import (
    can_reschedule,
    create_scheduled_record,
    is_scheduled,
    requires_scheduled_start,
    schedule,
)
from trainyard.operations.startup import Deadline, NodeStartup, follow_startup
from trainyard.operations.stop import STOP_TIMEOUT_SECONDS, stop_run


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """Options of a launch.

    `trigger`, `again`: stored in the record of a new run (RunRecord). None: the values with which the next `pulumi up`
    launches nothing again (launch_trigger, and `again` of the last run). `replace_running`: stop an active run of
    another manifest, otherwise refuse to launch. `resume_replaced`: a run that replaces an active run starts from its
    newest checkpoint. `wait`: return when the job of a new run has started, otherwise when its nodes are launched.
    `new_run`: start a new run also if the last run matches the manifest. `deployed_digest`: RunRecord.
    """

    trigger: str | None = None
    again: str | None = None
    replace_running: bool = False
    resume_replaced: bool = True
    wait: bool = True
    new_run: bool = False
    deployed_digest: str | None = None


class Launch(LaunchOperation):
    """One launch of the stack's manifest: `start` creates a new run or adds nodes to the current one."""

    def __init__(self, cluster: Cluster, display: Display, options: LaunchOptions | None = None) -> None:
        super().__init__(cluster, display)
        self.options = options or LaunchOptions()
        self._new_run_fields: dict[str, Any] = {}  # of the record of a new run
        self._kept_nodes = KeptNodesOperation(cluster, self.manifest, self.workers, display)
        self._kept: KeptNodes | None = None

    def start(self, update: bool = False) -> LaunchResult:
        """Start the manifest's job, or add nodes to the current run when it only has fewer nodes than the manifest.

        Launches nothing if an active run matches the manifest, with `update` also if the last run has ended and matches
        it. Raises LaunchError, and InputError for a user error, after it has terminated the nodes that it added. The
        message names nodes that AWS did not terminate.
        """
        current = self.cluster.current_run()
        self._set_new_run_fields(current)
        if current is None:
            require_capacity_time(self.manifest, time.time())
            return self._launch_new_run()
        control, active = self.cluster.control(current.run), self._is_active(current)
        same_manifest = current.matches(self.manifest) and not self.options.new_run
        if active and same_manifest and (result := self._update_starting_run(current, control)):
            return result
        if control is not None and control.started and same_manifest:
            missing = missing_nodes(self.manifest, self.workers, control)
            if active and any(missing.values()) and min(missing.values()) >= 0:
                require_capacity_time(self.manifest, time.time())
                # A scale-out that was killed may have recorded more nodes than it started.
                base = self._update_deadlines(current).model_copy(update={"nodes": len(control.nodes)})
                return scale_out_run(self, base, control, missing)
            if not any(missing.values()) if active else update and current.nodes == self.record.nodes:
                current = self._update_deadlines(current) if active else current
                self.display.line("run", f"{current.run} matches the manifest: nothing to launch")
                return self.result(current.run, self.workers.members())
        require_capacity_time(self.manifest, time.time())  # before the current run is stopped
        if active and not self.options.replace_running and not is_scheduled(current):  # that has done no work
            raise LaunchError(
                f"run {current.run} is active, and this launch would stop it. Wait for its end, stop it (trainyard "
                f"stop -s {self.cluster.stack}), or use trainyard run --replace-running, or set "
                "trainyard:cluster.launch.replace_running: true"
            )
        return self._launch_new_run(current, is_active=active)

    def _set_new_run_fields(self, current: RunRecord | None) -> None:
        """Set the fields of the record of a new run that follow from the options and the run before it."""
        trigger, again = self.options.trigger, self.options.again
        if trigger is None:
            trigger = launch_trigger(current, self.cluster.outcome(current.run) if current else None)
        if again is None:
            again = current.again if current else ""
        deployed_digest = self.options.deployed_digest
        self._new_run_fields = {"trigger": trigger, "again": again, "deployed_digest": deployed_digest}

    def _launch_new_run(self, earlier: RunRecord | None = None, *, is_active: bool = False) -> LaunchResult:
        """Start a new run after the `earlier` run, which is stopped if it is active."""
        self._prepare_job()

        def start() -> LaunchResult:
            self.pending.register()
            self.schedule_termination(earlier.reservations if earlier else ())
            with self.phase("dataset"):
                ensure_dataset(self.cluster, self.display)
            with self.phase("head"):
                wait_for_head(self.cluster, self.display, self.deadline)
            self._require_same_current_run(earlier)
            if earlier is not None:
                self._end_earlier_run(earlier, is_active and self._is_active(earlier))
            return self._start_run()

        try:
            return self.with_rollback(start, self._record_failure)
        except CapacityError as error:
            if self._kept_names:
                raise
            cost = describe_remaining_cost(self.manifest, self.reservations.describe_held())
            raise CapacityError(f"{error}. {cost}") from None

    def _prepare_job(self) -> None:
        """Resolve the job's container image, and check and lock its source, before anything is launched."""
        job = self.manifest.job
        if job.container is not None:
            with self.phase("container"):
                container = resolve_container_image(self.manifest, self.display)
            job = job.model_copy(update={"container": container})
        if job.source is not None:
            with self.phase("source"):
                self._new_run_fields["requirements"] = prepare_source(self.cluster, self.display)
            self.deadline = Deadline(self.manifest.limits.startup_timeout_minutes)
        self._new_run_fields["job"] = job

    def _require_same_current_run(self, earlier: RunRecord | None) -> None:
        """Raise LaunchError when another launch has created a run since this launch has read the current run."""
        current = self.cluster.current_run()
        if current is not None and current.run != (earlier.run if earlier else None):
            raise LaunchError(
                f"run {current.run} was launched while this launch was prepared, so that this launch has changed "
                f"nothing. To see it: trainyard status -s {self.cluster.stack}. To replace it, launch again"
            )

    def _end_earlier_run(self, run: RunRecord, is_active: bool) -> None:
        """Take the nodes of the earlier run if the new run can use them, otherwise wait for their termination.

        Stops the earlier run if it is active. The new run uses its reservations.
        """
        if is_active:
            self.display.line("run", f"stopping {run.run}, because another run replaces it")
        if not requires_scheduled_start(self.manifest) and self._kept_nodes.can_take(run, is_active=is_active):
            limits = self.manifest.limits
            keep_minutes = limits.startup_timeout_minutes + limits.capacity_wait_minutes
            self._kept = self._kept_nodes.take(run, keep_minutes, self._new_run_fields["job"].container)
        if self._kept is None:
            if is_active or (outcome := self.cluster.outcome(run.run)) is None or outcome.keeps_nodes(time.time()):
                stop_run(self.cluster, self.display, for_replacement=True)
            # Large types shut down for many minutes, which do not count as startup.
            termination = Deadline(STOP_TIMEOUT_SECONDS / 60, None)
            termination.wait_until("the termination of the earlier run's nodes", lambda: not self.workers.members())
        if is_active:
            self._resume_from(run)
        self.deadline = Deadline(self.manifest.limits.startup_timeout_minutes)
        self.record = create_run_record(self.manifest, time.time())

    def _resume_from(self, run: RunRecord) -> None:
        """Let the new run start from the newest checkpoint of the run that it replaces, unless job.resume is set."""
        if not self.options.resume_replaced or self.manifest.job.resume is not None:
            return
        if checkpoint := find_newest_checkpoint(self.cluster.data, run.run):
            self._new_run_fields["job"] = self._new_run_fields["job"].model_copy(update={"resume": run.run})
            self.display.line("run", f"the new run starts from {checkpoint} (launch.resume_replaced)")

    def _update_starting_run(self, current: RunRecord, control: Control | None) -> LaunchResult | None:
        """Reschedule the run to the start in the manifest, or update the deadlines of a run whose nodes start now.

        None: the run has started, or a new run has to replace it.
        """
        if can_reschedule(self.manifest, current):
            require_capacity_time(self.manifest, time.time())
            return self.with_rollback(lambda: self._schedule(current), self._record_failure)
        if (
            (control is not None and control.started)
            or current.nodes != self.record.nodes
            or current.block_reservation_ids != self.record.block_reservation_ids
        ):
            return None
        self.record = self._update_deadlines(current)
        self.display.line("run", f"{current.run} is starting: nothing to launch")
        if not self.options.wait:
            return self.result(current.run, self.workers.members(), "launched")
        if not is_scheduled(current):
            follow_startup(self.cluster, self.display, current)
        return self.result(current.run, self.workers.members())

    def _schedule(self, current: RunRecord | None = None) -> LaunchResult:
        """Schedule the run for the start of the Capacity Block. `current`: the run to reschedule; None: a new run."""
        start = self.manifest.capacity_start_time
        assert start is not None
        with self.phase("schedule"):
            check_before_start(self.cluster, self.display)
            self.record = create_scheduled_record(self.manifest, start, current)
            if current is None:
                self.record = self.record.model_copy(update=self._new_run_fields)
            schedule(self.workers, self.record, self.write_record, self.display)
            store_lock(self.cluster, self.record)
        self.report_capacity_limit(self.record)
        return self.result(self.record.run, [])

    def _is_active(self, run: RunRecord) -> bool:
        # A run has no nodes until its launch adds them.
        is_starting = time.time() < run.start + run.limits.startup_timeout_minutes * 60
        return self.cluster.outcome(run.run) is None and (is_starting or bool(self.workers.members()))

    def _update_deadlines(self, run: RunRecord) -> RunRecord:
        """Give an active run the manifest's deadlines; the controller then applies them."""
        changed = with_deadlines(run, self.manifest)
        if changed != run:
            self.write_record(changed)
            text = f"{run.run} has new deadlines: it ends {format_run_duration(changed)} after its launch"
            self.display.line("run", text)
            self.report_capacity_limit(changed)
        return changed

    @property
    def _kept_names(self) -> list[str]:
        """The nodes of the earlier run that the new run uses."""
        return self._kept.names if self._kept else []

    def _start_run(self) -> LaunchResult:
        """Start a new run, on kept and new nodes."""
        if requires_scheduled_start(self.manifest):
            return self._schedule()
        with self.phase("capacity"):
            self.reserve_capacity(self._missing_counts(), self._kept_names)
            if self._kept is not None:
                self._kept_nodes.remove_lost(self._kept)  # the wait for capacity may have been long
            counts = self._missing_counts()
            record = create_run_record(self.manifest, time.time())
            self.record = record.model_copy(update=self._new_run_fields | self._node_fields())
        with self.phase("workers"):
            self._create_run()
            startup = NodeStartup(self.cluster, self.display, self.deadline, self.record.run, is_new=True)
            nodes = self._kept_names
            if self._kept:
                self.display.line("nodes", self._kept.describe())
            if any(counts.values()):
                nodes = [*nodes, *self.add_nodes(counts)]
            startup.expect(nodes)
        if not self.options.wait:
            text = f"the controller starts the job. To follow it: trainyard status --wait -s {self.cluster.stack}"
            self.display.line("run", text)
            return self.result(self.record.run, nodes, "launched")
        with self.phase("startup"):
            startup.wait_for_job(self.record.nodes)
        self.report_job_started()
        control = self.cluster.control(self.record.run)
        # Not the nodes that were added: one of them may have been unhealthy and replaced.
        return self.result(self.record.run, list(control.nodes) if control else nodes)

    def _missing_counts(self) -> dict[str, int]:
        """Return group -> number of nodes that the new run launches."""
        kept = self._kept.nodes if self._kept else {}
        return {group.name: group.nodes - len(kept.get(group.name, ())) for group in self.manifest.groups}

    def _node_fields(self) -> dict[str, Any]:
        """Return the fields of the record of a new run that follow from its nodes."""
        reservations = self.reservation_ids()
        if self._kept is None or not self._kept_names:
            return {"reservations": reservations}
        return {
            "reservations": tuple(dict.fromkeys([*self._kept.earlier.reservations, *reservations])),
            "previous_run": self._kept.earlier.run,
            "healthy_nodes": self._kept.healthy,
        }

    def _record_failure(self, reason: str) -> None:
        """Write the outcome of a run whose start failed. Kept nodes are kept for the time after a failure."""
        if self.record.scheduled_start is not None:
            self.workers.cancel_scheduled_start()
        minutes = self.manifest.limits.keep_after_failure_minutes
        layout, now = RunLayout(self.record.run), time.time()
        if self.cluster.data.find(layout.record) is None:
            self._kept_nodes.release(minutes)
        elif self.cluster.outcome(self.record.run) is None:
            is_kept = bool(self._kept_names) and minutes > 0
            outcome = Outcome(
                state="failed",
                reason=f"launch: {reason}",
                attempts=0,
                ended_at=now,
                launch_failed=True,
                nodes_kept_until=now + minutes * 60 if is_kept else None,
            )
            self.cluster.data.write(layout.outcome, outcome.model_dump_json().encode())

    def _create_run(self) -> None:
        """Write the run's record and put the lease on the worker groups."""
        self.write_record(self.record)
        store_lock(self.cluster, self.record)
        # After the record: trainyard stop cancels a pending launch before it reads the record.
        self.pending.require_not_cancelled()
        self.workers.put_lease(self.record.lease_end(time.time()))
        self.display.line("run", f"{self.record.run}, lease of {self.record.limits.lease_minutes:g} minutes")
        self.report_capacity_limit(self.record)
