"""Steps that the launch of a new run and the scale-out of an active run share: capacity, nodes, and rollback."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

from botocore.exceptions import BotoCoreError, ClientError

from trainyard.aws.credentials import describe_expiration
from trainyard.aws.reservations import CapacityReservation
from trainyard.models.layout import CURRENT_RUN, RunLayout
from trainyard.models.manifest import Manifest, WorkerGroup
from trainyard.models.run import LaunchResult, RunRecord, latest_termination_time
from trainyard.models.step_progress import format_progress
from trainyard.models.streams import metric_lines
from trainyard.operations.cluster import Cluster
from trainyard.operations.errors import LaunchError
from trainyard.operations.kept_nodes import describe_kept_nodes
from trainyard.operations.launch_messages import (
    TERMINATE_BY_HAND,
    describe_not_terminated,
    describe_remaining_nodes,
    describe_remaining_reservations,
)
from trainyard.operations.pending_launch import PendingLaunch
from trainyard.operations.prestart_checks import check_before_start, require_source_reservation_in_account
from trainyard.operations.progress import Display
from trainyard.operations.reservations import GroupReservations, require_usable
from trainyard.operations.run_record import create_run_record, format_run_duration
from trainyard.operations.signals import ignore_signals, sigterm_as_interrupt
from trainyard.operations.startup import Deadline
from trainyard.operations.worker_groups import WorkerGroups
from trainyard.quantity import quantity
from trainyard.times import format_time

START_POLL_SECONDS = 10.0


class LaunchOperation:
    """Adds nodes to a stack, all of them or none. `active_run`: the run to which it adds them; None: a new run."""

    def __init__(self, cluster: Cluster, display: Display) -> None:
        self.cluster, self.display = cluster, display
        self.manifest: Manifest = cluster.manifest
        self.workers = WorkerGroups(self.manifest)
        self.pending = PendingLaunch(cluster)
        self.active_run: RunRecord | None = None
        self.reservations = GroupReservations(self.manifest, display, self.pending.id, self._require_not_ended)
        self.reserved: dict[str, CapacityReservation] = {}
        self.phases: dict[str, float] = {}
        self.is_adding_nodes = False
        self.deadline = Deadline(self.manifest.limits.startup_timeout_minutes)
        self.record = create_run_record(self.manifest, time.time())

    def with_rollback(self, operation: Callable[[], LaunchResult], undo: Callable[[str], None]) -> LaunchResult:
        """Run the operation; when it fails, call `undo` with the reason and terminate the nodes that were added.

        Raises LaunchError that reports what still runs when AWS refuses that or cannot be reached, as with expired
        credentials.
        """
        with sigterm_as_interrupt():
            try:
                return operation()
            except BaseException as error:
                reason = str(error) or type(error).__name__
                if kept := self._describe_kept_nodes((self.active_run or self.record).run):
                    raise LaunchError(f"{reason}\n{kept}") from None
                with ignore_signals():
                    try:
                        not_terminated = self._undo(undo, reason)
                    except (BotoCoreError, ClientError) as failure:
                        raise LaunchError(self._describe_failed_rollback(reason, failure)) from None
                if not_terminated:
                    running = describe_not_terminated(self.workers.usd_per_hour(not_terminated))
                    raise LaunchError(f"{reason}. {running}: {TERMINATE_BY_HAND}") from None
                raise

    def _describe_kept_nodes(self, run: str) -> str | None:
        """Return the text on the nodes of a run that has ended and whose nodes are kept; None otherwise."""
        try:
            outcome = self.cluster.outcome(run)
            if outcome is None or not outcome.keeps_nodes(time.time()):
                return None
            price = sum(self.workers.usd_per_hour(self.workers.members()).values())
        except (BotoCoreError, ClientError):  # then the rollback reports the failure
            return None
        return describe_kept_nodes(outcome, price, self.cluster.stack)

    def _undo(self, undo: Callable[[str], None], reason: str) -> list[str]:
        """Undo the operation, also when its record cannot be written; return the nodes that AWS did not terminate."""
        failure: Exception | None = None
        try:
            undo(reason)
        except (BotoCoreError, ClientError) as error:
            failure = error
        try:
            not_terminated = self.workers.rollback(self.display, superseded=self._is_superseded())
        finally:
            self._rollback_reservations()
        if failure is not None:
            if describe_expiration(failure) is not None:
                raise failure
            self.display.line("run", f"its record could not be written: {failure}")
        elif (current := self.cluster.current_run()) is not None and (kept := self._describe_kept_nodes(current.run)):
            self.display.line("nodes", kept)
        return not_terminated

    def _is_superseded(self) -> bool:
        """Return whether a later launch has started a run; False when the current run cannot be read."""
        if not self.is_adding_nodes:
            return False
        try:
            run = self.cluster.current_run()
        except (BotoCoreError, ClientError) as error:
            self.display.detail("run", str(error))
            return False
        return run is not None and run.run != (self.active_run or self.record).run

    def _rollback_reservations(self) -> None:
        """Cancel the launch's reservations, and those of earlier launches unless a run or another launch uses them."""
        self.reservations.rollback()
        run = self.cluster.current_run()
        outcome = self.cluster.outcome(run.run) if run is not None else None
        is_other = run is not None and run.run != self.record.run
        continues = is_other if outcome is None else outcome.keeps_nodes(time.time())
        if not continues and not self.pending.is_cancelled:
            self.reservations.cancel_reservations_of_groups()

    def _describe_failed_rollback(self, reason: str, failure: Exception) -> str:
        """Return the message for a launch that failed for `reason`, and whose rollback failed too."""
        expiration = describe_expiration(failure)
        cause = (
            f"the AWS credentials expired during the launch ({expiration}). Renew them."
            if expiration is not None
            else f"{reason}. The launch could not be undone: {failure}."
        )
        if self.is_adding_nodes:
            return describe_remaining_nodes(cause, self.workers.launched_nodes(), self.manifest)
        return describe_remaining_reservations(cause, self.reservation_ids(), self.cluster.stack)

    def _require_not_ended(self) -> None:
        """Raise LaunchError when the launch was cancelled, or its active run has ended, while it waits for capacity."""
        run = self.active_run
        if run is None:
            self.pending.require_not_cancelled()
        elif outcome := self.cluster.outcome(run.run):
            raise LaunchError(f"run {run.run} has {outcome.state} before nodes were added: {outcome.reason}")

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure the duration of a phase for the result."""
        start_time = time.monotonic()
        yield
        self.phases[name] = round(time.monotonic() - start_time, 3)

    def write_record(self, record: RunRecord) -> None:
        """Write the record of the current run, which the controller follows, and schedule the end of its cost."""
        self.workers.put_termination_schedules(record.termination_time, record.reservations)
        content = record.model_dump_json().encode()
        self.cluster.data.write(RunLayout(record.run).record, content)
        assert self.cluster.staging is not None
        self.cluster.staging.write(CURRENT_RUN, content)

    def schedule_termination(self, reservations: Iterable[str]) -> None:
        """Schedule the termination of the workers and the cancellation of reservations before the run has a record.

        The record has an earlier time. Until then a schedule of an earlier run must not end what this launch uses.
        """
        start = self.manifest.capacity_start_time
        self.workers.put_termination_schedules(
            latest_termination_time(time.time(), self.manifest.limits, start), reservations
        )

    def reserve_capacity(self, missing: Mapping[str, int], running: Iterable[str] = ()) -> None:
        """Reserve the capacity of the groups for which the manifest requires it.

        `missing`: group -> nodes to add; `running`: the nodes of the active run. The wait for capacity counts
        neither as startup nor as time of the run.
        """
        started = time.time()
        hold_seconds = self.manifest.limits.lease_minutes * 60  # then the controller extends it with the lease
        for group in self.manifest.groups:
            if group.reserve and missing[group.name]:
                reservation = self.reservations.reserve(group, missing[group.name], hold_seconds, running)
                self.reserved[group.name] = reservation
                self.schedule_termination([reservation.id])
            elif group.reservation is not None:
                require_source_reservation_in_account(self.manifest.region, group)
                self._wait_for_start(group)
                self.reservations.wait_for_capacity(group.reservation, missing[group.name])
        self.deadline.at += time.time() - started
        self._require_not_ended()

    def _wait_for_start(self, group: WorkerGroup) -> None:
        """Wait until the group's Capacity Block starts."""
        start = group.capacity_start_time or 0.0
        if start > time.time():
            check_before_start(self.cluster, self.display)
            self.display.line("capacity", f"{group.reservation} starts at {format_time(start)}: the launch waits")
        while (remaining := start - time.time()) > 0:
            self._require_not_ended()
            require_usable(self.manifest.region, self.manifest.stack, str(group.reservation))
            self.display.detail("capacity", f"{group.reservation} starts in {remaining / 60:.1f} minutes")
            time.sleep(min(remaining, START_POLL_SECONDS))

    def reservation_ids(self) -> tuple[str, ...]:
        """Return the ids of the reservations that the launch uses."""
        return tuple(reservation.id for reservation in self.reserved.values())

    def add_nodes(self, counts: Mapping[str, int]) -> list[str]:
        """Launch nodes; `counts` maps a group's name to the number of nodes to add."""
        requests = [
            f"{counts[group.name]} x {group.instance_type}" for group in self.manifest.groups if counts[group.name]
        ]
        self.display.detail("nodes", f"launching {', '.join(requests)}")
        self.is_adding_nodes = True
        added = self.workers.add_nodes(counts, self.record.run, self.display, self.reserved)
        self.display.line("nodes", f"{len(added)} of {sum(counts.values())} launched: {', '.join(added)}")
        return added

    def report_job_started(self) -> None:
        """Display that the job has started on all nodes."""
        processes = self.record.nodes * self.record.processes_per_node
        counts = f"{quantity(processes, 'process')} on {quantity(self.record.nodes, 'node')}"
        train = self.record.job.train
        progress = format_progress(metric_lines(self.cluster.data, self.record.run), train.steps) if train else ""
        self.display.line("job", f"started: {counts}" + (f", {progress}" if progress else ""))

    def report_capacity_limit(self, run: RunRecord) -> None:
        """Display that the run ends with its capacity, if it does."""
        if run.limited_by_capacity:
            limit = f"{run.limits.time_limit_minutes:g} (job.time_limit_minutes)"
            duration = f"{format_run_duration(run)} after the launch, not {limit}"
            self.display.line("time limit", f"the capacity ends at {format_time(run.deadline)}: {duration}")

    def result(self, run: str, nodes: list[str], state: Literal["started", "launched"] = "started") -> LaunchResult:
        """Return the result of the launch. `nodes`: the nodes of the run. `state`: of a run that is not scheduled."""
        scheduled_start = self.record.scheduled_start if run == self.record.run else None
        return LaunchResult(
            run=run,
            state=state if scheduled_start is None else "scheduled",
            scheduled_start=scheduled_start,
            nodes=tuple(nodes),
            data_uri=self.manifest.job.data_uri,
            run_uri=f"s3://{self.manifest.data_bucket}/{RunLayout(run).prefix}",
            phases=self.phases,
        )
