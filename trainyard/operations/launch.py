"""The launch: check the dataset, wait for the head, create a run, start all nodes or none, wait for the job's start.

Before it adds nodes it puts the lease on the worker groups: AWS itself then terminates the workers when the operator's
process and the controller do not. When the manifest only adds nodes to the current run, the run grows: the new
nodes join it at its next attempt, or are terminated, and the existing nodes stay.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from trainyard.aws.credentials import describe_expiration
from trainyard.aws.reservations import CapacityReservation
from trainyard.models.layout import CURRENT_RUN, RunLayout
from trainyard.models.manifest import Manifest, WorkerGroup
from trainyard.models.run import Control, LaunchResult, Outcome, RunRecord
from trainyard.operations.cluster import Cluster
from trainyard.operations.dataset import ensure_dataset
from trainyard.operations.errors import CapacityError, LaunchError
from trainyard.operations.launch_messages import (
    TERMINATE_BY_HAND,
    describe_expiration_before_nodes,
    describe_expiration_with_nodes,
    describe_remaining_cost,
)
from trainyard.operations.pending_launch import PendingLaunch
from trainyard.operations.prestart_checks import check_before_start
from trainyard.operations.progress import Display
from trainyard.operations.reservations import GroupReservations
from trainyard.operations.run_record import (
    create_run_record,
    format_run_duration,
    format_time,
    require_capacity_time,
    with_deadlines,
)
from trainyard.operations.scheduled_launch import can_move, far_start, is_waiting, schedule, schedule_record
from trainyard.operations.signals import ignore_signals, sigterm_as_interrupt
from trainyard.operations.startup import Deadline, NodeStartup, wait_for_head
from trainyard.operations.stop import stop_run
from trainyard.operations.worker_groups import WorkerGroups

START_POLL_SECONDS = 10.0


class Launch:
    """One launch of the stack's manifest: `start` creates a new run or adds nodes to the current one."""

    def __init__(self, cluster: Cluster, display: Display) -> None:
        self.cluster, self.display = cluster, display
        self.manifest: Manifest = cluster.manifest
        self.workers = WorkerGroups(self.manifest)
        self.pending = PendingLaunch(cluster)
        self.growing_run: RunRecord | None = None
        self.reservations = GroupReservations(self.manifest, display, self._require_not_ended)
        self.reserved: dict[str, CapacityReservation] = {}
        self.phases: dict[str, float] = {}
        self.is_adding_nodes = False
        self.added_nodes: list[str] = []
        self.deadline = Deadline(self.manifest.limits.startup_timeout_minutes)
        self.record = create_run_record(self.manifest, time.time())

    def start(self, update: bool = False) -> LaunchResult:
        """Start the manifest's job, or add nodes to the current run when it only has fewer nodes than the manifest.

        With `update`, apply a changed manifest: nothing is launched when the current run matches it, and a run of
        another manifest is stopped first. Raises LaunchError, or InputError for a user error; then no node that was
        added still runs.
        """
        current = self.cluster.current_run()
        if current is None:
            require_capacity_time(self.manifest, time.time())
            return self._launch_new_run()
        control, active = self.cluster.control(current.run), self._is_active(current)
        same_manifest = current.manifest_digest == self.record.manifest_digest
        if active and same_manifest and (result := self._adopt_scheduled_run(current, control)):
            return result
        if control is not None and control.started and same_manifest:
            missing = self._missing_nodes(control)
            if active and any(missing.values()) and min(missing.values()) >= 0:
                require_capacity_time(self.manifest, time.time())
                # A growth that was killed may have recorded more nodes than it started.
                base = self._update_deadlines(current).model_copy(update={"nodes": len(control.nodes)})
                return self._grow_run(base, control, missing)
            if update and (not any(missing.values()) if active else current.nodes == self.record.nodes):
                current = self._update_deadlines(current) if active else current
                self.display.line("run", f"{current.run} matches the manifest: nothing to launch")
                return self._result(current.run, self.workers.members())
        require_capacity_time(self.manifest, time.time())  # before the current run is stopped
        if active and not update and not is_waiting(current):  # no work of a waiting run is lost
            raise LaunchError(
                f"run {current.run} is active on the cluster; wait for its end, or stop it: trainyard stop --stack "
                f"{self.cluster.stack}"
            )
        return self._launch_new_run(current, is_active=active)

    def _launch_new_run(self, earlier: RunRecord | None = None, *, is_active: bool = False) -> LaunchResult:
        """Start a new run after the `earlier` run, which is stopped if it is active."""

        def start() -> LaunchResult:
            self.pending.register()
            if earlier is not None:
                self._end_earlier_run(earlier, is_active)
            return self._start_run()

        try:
            return self._with_rollback(start, self._record_failure)
        except CapacityError as error:
            cost = describe_remaining_cost(self.manifest, self.reservations.describe_held())
            raise CapacityError(f"{error}. {cost}") from None

    def _end_earlier_run(self, run: RunRecord, is_active: bool) -> None:
        """Stop an active run whose reservations the new run uses, and wait for the termination of its nodes."""
        if is_active:
            self.display.line("run", f"stopping {run.run}, because the manifest has changed")
            stop_run(self.cluster, self.display, keep_reservations=True)
            self.deadline = Deadline(self.manifest.limits.startup_timeout_minutes)
            self.record = create_run_record(self.manifest, time.time())
        self.deadline.wait_until("the termination of the earlier run's nodes", lambda: not self.workers.members())

    def _adopt_scheduled_run(self, current: RunRecord, control: Control | None) -> LaunchResult | None:
        """Move the scheduled start of a waiting run to the manifest's, or let a run that AWS starts now continue.

        None: the run is not scheduled, or another run has to replace it.
        """
        if can_move(self.manifest, current):
            require_capacity_time(self.manifest, time.time())
            return self._with_rollback(lambda: self._schedule(current), self._record_failure)
        is_starting = current.scheduled_start is not None and not (control and control.started)
        if (
            not is_starting
            or current.nodes != self.record.nodes
            or current.capacity_blocks != self.record.capacity_blocks
        ):
            return None
        self.record = self._update_deadlines(current)
        self.display.line("run", f"{current.run} is starting: nothing to launch")
        return self._result(current.run, self.workers.members())

    def _schedule(self, current: RunRecord | None = None) -> LaunchResult:
        """Let AWS start the nodes at the start of the Capacity Block. `current`: the waiting run, which is moved."""
        start = self.manifest.capacity_start_time
        assert start is not None
        with self._phase("schedule"):
            check_before_start(self.cluster, self.display)
            self.record = schedule_record(self.manifest, start, current)
            schedule(self.workers, self.record, self._write_record, self.display)
        self._report_capacity_limit(self.record)
        return self._result(self.record.run, [])

    def _grow_run(self, current: RunRecord, control: Control, missing: Mapping[str, int]) -> LaunchResult:
        self.growing_run = current
        return self._with_rollback(
            lambda: self._add_nodes_to_run(current, control, missing), lambda reason: self._restore_record(current)
        )

    def _missing_nodes(self, control: Control) -> dict[str, int]:
        """Return group -> nodes in the manifest minus nodes of the attempt.

        A lost node is in no group any more: it is counted in a group that misses nodes.
        """
        members = {name: set(nodes) & set(control.nodes) for name, nodes in self.workers.members_by_group().items()}
        lost = len(control.nodes) - sum(map(len, members.values()))
        missing = {}
        for group in self.manifest.groups:
            difference = group.nodes - len(members.get(group.name, ()))
            missing[group.name] = difference - min(max(difference, 0), lost)
            lost -= min(max(difference, 0), lost)
        missing[group.name] -= lost
        return missing

    def _is_active(self, run: RunRecord) -> bool:
        # A run has no nodes until its launch adds them.
        is_starting = time.time() < run.start + run.limits.startup_timeout_minutes * 60
        return self.cluster.outcome(run.run) is None and (is_starting or bool(self.workers.members()))

    def _update_deadlines(self, run: RunRecord) -> RunRecord:
        """Give an active run the manifest's deadlines; the controller then applies them."""
        changed = with_deadlines(run, self.manifest)
        if changed != run:
            self._write_record(changed)
            text = f"{run.run} has new deadlines: it ends {format_run_duration(changed)} after its launch"
            self.display.line("run", text)
            self._report_capacity_limit(changed)
        return changed

    def _report_capacity_limit(self, run: RunRecord) -> None:
        if run.limited_by_capacity:
            limit = f"{run.limits.time_limit_minutes:g} (job.time_limit_minutes)"
            duration = f"{format_run_duration(run)} after the launch, not {limit}"
            self.display.line("time limit", f"the capacity ends at {format_time(run.deadline)}: {duration}")

    def _with_rollback(self, operation: Callable[[], LaunchResult], undo: Callable[[str], None]) -> LaunchResult:
        """Run the operation; when it fails, call `undo` with the reason and terminate the nodes that were added.

        With expired credentials neither is possible: then raises LaunchError that reports what still runs.
        """
        try:
            return self._run_or_undo(operation, undo)
        except Exception as error:
            if (reason := describe_expiration(error)) is None:
                raise
            raise LaunchError(self._expiration_message(reason)) from None

    def _run_or_undo(self, operation: Callable[[], LaunchResult], undo: Callable[[str], None]) -> LaunchResult:
        with sigterm_as_interrupt():
            try:
                return operation()
            except BaseException as error:
                reason = str(error) or type(error).__name__
                not_terminated: list[str] = []
                with ignore_signals():
                    try:
                        undo(reason)
                    finally:
                        try:
                            not_terminated = self.workers.rollback(self.display)
                        finally:
                            self._rollback_reservations()
                if not_terminated:
                    price = self.workers.usd_per_hour(not_terminated)
                    reason += (
                        f". AWS did not terminate {', '.join(not_terminated)}, which cost {price:,.2f} USD per hour"
                    )
                    raise LaunchError(f"{reason}: {TERMINATE_BY_HAND}") from None
                raise

    def _rollback_reservations(self) -> None:
        """End what the launch reserved, and the reservations of earlier launches unless a run or launch uses them."""
        self.reservations.rollback()
        run = self.cluster.current_run()
        continues = run is not None and run.run != self.record.run and self.cluster.outcome(run.run) is None
        if not continues and not self.pending.is_ended:
            self.reservations.cancel_all_of_groups()

    def _expiration_message(self, reason: str) -> str:
        if self.is_adding_nodes:
            return describe_expiration_with_nodes(reason, self.added_nodes, self.manifest)
        return describe_expiration_before_nodes(reason, self._reservation_ids())

    def _start_run(self) -> LaunchResult:
        """Start a new run."""
        with self._phase("dataset"):
            ensure_dataset(self.cluster, self.display)
        with self._phase("head"):
            wait_for_head(self.cluster, self.display, self.deadline)
        if far_start(self.manifest) is not None:
            return self._schedule()
        counts = {group.name: group.nodes for group in self.manifest.groups}
        with self._phase("capacity"):
            self._reserve_capacity(counts)
            record = create_run_record(self.manifest, time.time())
            self.record = record.model_copy(update={"reservations": self._reservation_ids()})
        with self._phase("workers"):
            self._create_run()
            startup = NodeStartup(self.cluster, self.display, self.deadline, self.record.run, is_new=True)
            startup.expect(added := self._add_nodes(counts))
        with self._phase("startup"):
            startup.wait_for_job(self.record.nodes)
        self._report_job_started()
        control = self.cluster.control(self.record.run)
        # Not the nodes that were added: one of them may have been unhealthy and replaced.
        return self._result(self.record.run, list(control.nodes) if control else added)

    def _add_nodes_to_run(self, current: RunRecord, control: Control, missing: Mapping[str, int]) -> LaunchResult:
        """Add nodes to an active run; they are ready before its current attempt is interrupted."""
        members = self.workers.members()
        if lost := sorted(set(control.nodes) - set(members)):
            raise LaunchError(
                f"run {current.run} has lost {', '.join(lost)} and waits for replacements, so that no nodes can be "
                f"added; launch again when it runs, or stop it: trainyard stop --stack {self.cluster.stack}"
            )
        with self._phase("workers"):
            self.display.line("run", f"{current.run} grows from {current.nodes} to {self.record.nodes} nodes")
            self._terminate_leftover_nodes(control, members)
            self._reserve_capacity(missing, control.nodes)
            # The controller extends a reservation that the record names.
            current = current.model_copy(update={"reservations": self._reservation_ids() or current.reservations})
            self._write_record(current)
            self.workers.put_lease(current.lease_end(time.time()))
            startup = NodeStartup(self.cluster, self.display, self.deadline, current.run)
            startup.expect(self._add_nodes(missing))
        with self._phase("startup"):
            startup.wait_for_agents()
            self._write_record(current.model_copy(update={"nodes": self.record.nodes}))
            startup.wait_for_job(self.record.nodes, after=control.attempt)
        self._report_job_started()
        return self._result(current.run, self.workers.members())

    def _terminate_leftover_nodes(self, control: Control, members: list[str]) -> None:
        """Terminate nodes that an earlier launch added before it was killed: their state is unknown."""
        leftover = sorted(set(members) - set(control.nodes))
        for name in leftover:
            self.workers.terminate(name, self.display)
        if leftover:
            self.display.line("nodes", f"terminated nodes of an earlier launch that was killed: {', '.join(leftover)}")
            self.deadline.wait_until(
                f"the termination of {', '.join(leftover)}", lambda: not set(leftover) & set(self.workers.members())
            )

    def _restore_record(self, current: RunRecord) -> None:
        """Restore the record of the run after a growth that failed."""
        if self.cluster.current_run() != current:
            self._write_record(current)
        if self.cluster.outcome(current.run) is None:
            self.display.line("run", f"{current.run} continues with its {current.nodes} nodes")

    def _record_failure(self, reason: str) -> None:
        """Write the outcome of a run whose start failed."""
        if self.record.scheduled_start is not None:
            self.workers.cancel_scheduled_start()
        layout = RunLayout(self.record.run)
        if self.cluster.data.find(layout.record) is not None and self.cluster.outcome(self.record.run) is None:
            outcome = Outcome(state="failed", reason=f"launch: {reason}", attempts=0, ended_at=time.time())
            self.cluster.data.write(layout.outcome, outcome.model_dump_json().encode())

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        start_time = time.monotonic()
        yield
        self.phases[name] = round(time.monotonic() - start_time, 3)

    def _write_record(self, record: RunRecord) -> None:
        content = record.model_dump_json().encode()
        self.cluster.data.write(RunLayout(record.run).record, content)
        assert self.cluster.staging is not None
        self.cluster.staging.write(CURRENT_RUN, content)

    def _create_run(self) -> None:
        """Write the run's record and put the lease on the worker groups."""
        self._write_record(self.record)
        self.pending.require()  # after the record, which trainyard stop reads after it has ended pending launches
        self.workers.put_lease(self.record.lease_end(time.time()))
        self.display.line("run", f"{self.record.run}, lease of {self.record.limits.lease_minutes:g} minutes")
        self._report_capacity_limit(self.record)

    def _reserve_capacity(self, missing: Mapping[str, int], running: Iterable[str] = ()) -> None:
        """Reserve the capacity of the groups for which the manifest requires it.

        `missing`: group -> nodes to add; `running`: the nodes of the run that grows. The wait for capacity does not
        count, neither as startup nor as time of the run.
        """
        started = time.time()
        hold_seconds = self.manifest.limits.lease_minutes * 60  # then the controller extends it with the lease
        for group in self.manifest.groups:
            if group.reserve and missing[group.name]:
                reservation = self.reservations.reserve(group, missing[group.name], hold_seconds, running)
                self.reserved[group.name] = reservation
            elif group.reservation is not None:
                self._wait_for_start(group)
                self.reservations.wait_for_capacity(group.reservation, missing[group.name])
        self.deadline.at += time.time() - started
        self._require_not_ended()

    def _require_not_ended(self) -> None:
        """Raise LaunchError when the launch was ended during its wait for capacity."""
        run = self.growing_run
        if run is None:
            self.pending.require()
        elif outcome := self.cluster.outcome(run.run):
            raise LaunchError(f"run {run.run} has {outcome.state} before nodes were added: {outcome.reason}")

    def _wait_for_start(self, group: WorkerGroup) -> None:
        """Wait until the group's Capacity Block starts."""
        start = group.capacity_start_time or 0.0
        if start > time.time():
            check_before_start(self.cluster, self.display)
            self.display.line("capacity", f"{group.reservation} starts at {format_time(start)}: the launch waits")
        while (remaining := start - time.time()) > 0:
            self.display.detail("capacity", f"{group.reservation} starts in {remaining / 60:.1f} minutes")
            time.sleep(min(remaining, START_POLL_SECONDS))

    def _reservation_ids(self) -> tuple[str, ...]:
        return tuple(reservation.id for reservation in self.reserved.values())

    def _add_nodes(self, counts: Mapping[str, int]) -> list[str]:
        """Launch nodes; `counts` maps a group's name to the number of nodes to add."""
        requests = [
            f"{counts[group.name]} x {group.instance_type}" for group in self.manifest.groups if counts[group.name]
        ]
        self.display.detail("nodes", f"launching {', '.join(requests)}")
        self.is_adding_nodes = True
        self.added_nodes = added = self.workers.add_nodes(counts, self.record.run, self.display, self.reserved)
        self.display.line("nodes", f"{len(added)} of {sum(counts.values())} launched: {', '.join(added)}")
        return added

    def _report_job_started(self) -> None:
        processes = self.record.nodes * self.record.processes_per_node
        self.display.line("job", f"started: {processes} processes on {self.record.nodes} nodes")

    def _result(self, run: str, nodes: list[str]) -> LaunchResult:
        scheduled_start = self.record.scheduled_start if run == self.record.run else None
        return LaunchResult(
            run=run,
            state="started" if scheduled_start is None else "scheduled",
            scheduled_start=scheduled_start,
            nodes=tuple(nodes),
            data_uri=self.manifest.job.data_uri,
            run_uri=f"s3://{self.manifest.data_bucket}/{RunLayout(run).prefix}",
            phases=self.phases,
        )
