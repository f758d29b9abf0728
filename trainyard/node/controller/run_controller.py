"""Controls one run from its record to its outcome: events, deadlines, lease, attempts, and the end."""

import logging

from botocore.exceptions import BotoCoreError, ClientError

from trainyard.clock import Clock
from trainyard.models.events import ActivityEvent, AgentEvent, HealthCheckEvent
from trainyard.models.manifest import Manifest
from trainyard.models.run import Outcome, RunRecord
from trainyard.node.controller.account import Account
from trainyard.node.controller.attempts import Attempts
from trainyard.node.controller.deadline import RunDeadline
from trainyard.node.controller.health_checks import HealthChecks
from trainyard.node.controller.lease import Lease
from trainyard.node.controller.node_reports import AgentConnections, NodeReports
from trainyard.node.controller.outcomes import create_outcome
from trainyard.node.controller.reclaims import ReclaimWatch
from trainyard.node.controller.results_lock import lock_results
from trainyard.node.controller.run_state import RunState
from trainyard.node.controller.startup_watch import StartupWatch
from trainyard.node.controller.worker_groups import WorkerGroups
from trainyard.node.identity import Node
from trainyard.quantity import quantity
from trainyard.times import format_time

MEMBERS_POLL_SECONDS = 5.0
# A Capacity Block may become active some minutes after its start, and Auto Scaling retries a failed launch after some
# minutes. The nodes that started meanwhile are paid for anyway.
SCHEDULED_NODES_TIMEOUT_SECONDS = 15 * 60.0
REMAINING_NODES_WARNING_SECONDS = 600.0
LOG = logging.getLogger("controller")


class RunController:
    """Controls one run from its record to its outcome.

    Account, connections of the agents and clock are parameters, so that a simulation drives the same code.
    """

    def __init__(
        self,
        node: Node,
        manifest: Manifest,
        run: RunRecord,
        account: Account,
        connections: AgentConnections,
        clock: Clock,
    ) -> None:
        self._stack = manifest.stack
        data = account.bucket(manifest.data_bucket)
        self.state = RunState(run, data, connections, clock)
        self.reports = NodeReports(connections, data, self.state.layout, clock)
        self.groups = WorkerGroups(manifest.groups, account, self.state.nodes_in_use())
        self.lease = Lease(self.state, self.groups, account.region)
        health_checks = HealthChecks(node, manifest, run.run, data, clock)
        self.attempts = Attempts(self.state, account, self.groups, health_checks, manifest)
        self._startup = StartupWatch(account.find_impaired_instances)
        self._deadline = RunDeadline(account.region)
        self._reclaims = ReclaimWatch(manifest.groups, account.region)
        self._members_at: float | None = None
        self._has_ended = self._are_reservations_cancelled = False
        self._warning_at = 0.0  # time of the next warning that the nodes of an ended run still exist

    def step(self) -> Outcome | None:
        """Read new events, check all deadlines, update `control.json`; return the outcome if the run is over."""
        now, state = self.state.clock.time(), self.state
        self._renew_lease(now)  # first: what follows may take minutes after a restart, with many events to read
        self._update_members()
        self._read_reports()
        if not state.control.started and (state.all_have_state("workers_up") or state.all_have_state("workers_done")):
            state.update_control(started=True)
        self._update_deadline(now)
        self._renew_lease(now)  # the deadline may have changed
        if reason := self._find_end_reason(now):
            return create_outcome(state, "failed", reason)
        return self.attempts.advance(now)

    def _renew_lease(self, now: float) -> None:
        """Renew the lease if it is due. An outage of Auto Scaling stops nothing else: the next step repeats it."""
        if now >= self.state.run.deadline:
            return
        try:
            self.lease.renew_if_due(now)
        except (BotoCoreError, ClientError) as error:
            LOG.warning("the lease is not renewed: %s", error)

    def _update_members(self) -> None:
        now = self.state.clock.monotonic()
        if self._members_at is not None and now < self._members_at + MEMBERS_POLL_SECONDS:
            return
        if not self._read_members(now):
            return
        unhealthy = set(self.state.control.unhealthy_nodes) - set(self.state.nodes_in_use())
        self._complete_terminations(unhealthy)
        self.groups.terminate_unreplaced(unhealthy, now)
        self.attempts.repairs.mark_unhealthy_nodes()
        if self._reclaims.has_new_reclaim():
            self.state.update_control(checkpoint_requests=self.state.control.checkpoint_requests + 1)

    def _drained_nodes(self) -> set[str]:
        """Return the nodes at their hook that are drained and do not run: another node may have sent the report."""
        drained = self.state.node_states.drained_nodes(self.groups.draining_nodes)
        return self.groups.without_running(drained)

    def _complete_terminations(self, unhealthy: set[str]) -> None:
        """Let the termination of drained nodes continue, and that of unhealthy nodes whose agents do not respond."""
        reported = unhealthy & self.state.node_states.latest.keys()
        # An unhealthy node whose agent responds drains first: its action is completed when it is drained.
        silent = self.attempts.liveness.silent_nodes(reported).keys()
        self.groups.complete_terminations((unhealthy - (reported - silent)) | self._drained_nodes())

    def _read_members(self, now: float) -> bool:
        """Read the members of the groups, and return whether AWS has responded. Otherwise the known members remain."""
        try:
            members = self.groups.members()
        except (BotoCoreError, ClientError) as error:
            if self._members_at is None:
                raise  # the members are not known yet
            LOG.warning("the members of the worker groups cannot be read: %s", error)
            self._members_at = now
            return False
        self.state.members, self._members_at = members, now
        return True

    def _read_reports(self) -> None:
        for event in self.reports.read_events({*self.state.members, *self.groups.draining_nodes}):
            self._startup.update(event)
            if isinstance(event, AgentEvent):
                self.state.node_states.update(event)
            elif isinstance(event, ActivityEvent) and self.reports.has_read_all:  # old events: activity is not known
                self.attempts.idle_detector.update(event, self.state.clock.monotonic())
            elif isinstance(event, HealthCheckEvent):
                self.attempts.health_checks.update(event)
        heartbeats = self.reports.heartbeats()
        self.state.node_states.update_heartbeats(received.heartbeat for received in heartbeats.values())
        self.attempts.liveness.update(self.state.control.attempt, heartbeats)
        self.attempts.stragglers.update(self.state.control.attempt, self.state.run.processes_per_node, heartbeats)

    def _update_deadline(self, now: float) -> None:
        """Update the run's deadline. A changed deadline is published, and the lease renewed at once."""
        state = self.state
        deadline = self._deadline.find(state.run, state.control, now)
        if deadline != (state.run.deadline if state.control.deadline is None else state.control.deadline):
            LOG.info("the run's deadline is now %s", format_time(deadline))
            state.update_control(deadline=deadline)
            self.lease.request_renewal()
        state.run = state.run.model_copy(update={"deadline": deadline})

    def _find_end_reason(self, now: float) -> str | None:
        """Return why the run ends whatever its attempts do; None if it continues."""
        run, control = self.state.run, self.state.control
        minutes = run.limits.startup_timeout_minutes
        if now > run.deadline:
            return self._describe_deadline()
        if self._deadline.unusable is not None:
            fix = f"Set another block (capacity.capacity_block.id): trainyard blocks -s {self._stack}"
            return f"{self._deadline.unusable}. {fix}"
        if not control.started and now > run.start + minutes * 60:
            text = f"the job did not start within {minutes:g} minutes (launch.startup_timeout_minutes)"
            return f"{text}{self.attempts.failed_health_check_reason()}"
        return self._find_missing_capacity(now) or self._replace_failed_startups(now)

    def _replace_failed_startups(self, now: float) -> str | None:
        """Replace nodes whose startup has failed; return why the run ends instead, if it does.

        If two nodes fail in the same way, the nodes are not the cause, and the run ends. After the first attempt has
        started, every failed node is replaced, and the run waits for nodes, as after any loss. While a launch adds
        nodes to an active run, that launch terminates the nodes that fail.
        """
        state, limit = self.state, self.state.run.limits.max_startup_replacements
        members = set(state.members) - set(state.control.unhealthy_nodes)
        has_added_nodes = len(members) > state.run.nodes + state.run.spares
        starting = set[str]() if has_added_nodes else members - state.node_states.latest.keys()
        for failure in self._startup.find_failures(sorted(starting), now):
            failed = state.control.failed_startups
            same = next((node for node, message in failed.items() if message == failure.message), None)
            reason = None
            if failure.is_permanent:
                reason = failure.describe()
            elif same is not None and not failure.is_instance_fault:
                reason = f"{failure.describe()}. The startup of {same} failed in the same way before"
            elif len(failed) >= limit:
                text = f"{quantity(limit, 'replacement')} (launch.max_startup_replacements)"
                reason = f"{failure.describe()}, after {text}" if limit else failure.describe()
            if reason is not None and not state.control.attempt:
                return reason
            LOG.warning("replacing %s: %s", failure.node, failure.describe())
            self.attempts.repairs.replace(failure.node, failure.message, is_host_fault=failure.is_instance_fault)
            state.update_control(failed_startups={**failed, failure.node: failure.message})
        return None

    def _describe_deadline(self) -> str:
        """Return the reason for the end of the run at its deadline."""
        run = self.state.run
        resume = f"set job.resume: {run.run} to continue from its newest checkpoint, if it has one"
        if run.limited_by_capacity:
            end = format_time(run.deadline)
            return f"the capacity of the run (capacity) was usable until {end}: use other capacity, and {resume}"
        minutes = run.limits.time_limit_minutes
        return f"the time limit of {minutes:g} minutes is over (job.time_limit_minutes): increase it, and {resume}"

    def _find_missing_capacity(self, now: float) -> str | None:
        """Return the reason to end the run if AWS has not started all nodes in time after the scheduled start."""
        start, nodes, members = self.state.run.scheduled_start, self.state.run.nodes, len(self.state.members)
        is_starting = self.state.control.attempt == 0 and self.state.control.health_check_count == 0
        if start is None or now <= start + SCHEDULED_NODES_TIMEOUT_SECONDS:
            return None
        if not is_starting or members >= nodes:
            return None
        minutes = SCHEDULED_NODES_TIMEOUT_SECONDS / 60
        text = f"AWS started {members} of {nodes} nodes within {minutes:g} minutes of the scheduled start"
        fix = f"Reduce nodes, then trainyard up -s {self._stack}, or contact AWS support about the Capacity Block"
        return f"{': '.join([text, *self.groups.failed_launches(start)])}. {fix}"

    def write_outcome(self, outcome: Outcome) -> bool:
        """Record the end of the run, and lock its results before.

        Returns False when a launch or `trainyard stop` has recorded another outcome.
        """
        outcome = lock_results(self.state, outcome)
        if not self.state.data.create(self.state.layout.outcome, outcome.model_dump_json().encode()):
            return False
        LOG.info("run %s: %s", outcome.state, outcome.reason)
        return True

    def keep_nodes(self, outcome: Outcome, now: float) -> None:
        """Stop the agents' jobs, and renew the lease of the nodes, which wait for another run. Idempotent.

        A launch that starts another run on the nodes may keep them longer than the deadline of this run.
        """
        assert outcome.nodes_kept_until is not None
        self._stop_agents(outcome)
        self.lease.renew_for_kept_nodes(now, outcome.nodes_kept_until)
        self._follow_terminations()

    def end_run(self, outcome: Outcome) -> bool:
        """Terminate the nodes, and return whether they have left their groups and the reservations are cancelled.

        Repeat it until then. Idempotent.
        """
        if not self._has_ended:
            self._stop_agents(outcome)
            try:
                if self.state.run.scheduled_start is not None:
                    self.groups.cancel_scheduled_start()
            finally:
                self.groups.scale_to_zero()
            self._has_ended = True
            self._warning_at = self.state.clock.monotonic() + REMAINING_NODES_WARNING_SECONDS
        if not self._are_reservations_cancelled:
            reservations = () if outcome.keeps_reservations else self.state.run.reservations
            self._are_reservations_cancelled = self.lease.reservations.cancel(reservations)
        self._follow_terminations()
        if self._are_reservations_cancelled and not self.groups.instances:
            return True
        self._warn_of_remaining_nodes()
        return False

    def _warn_of_remaining_nodes(self) -> None:
        """Log what is still billed: there is no limit, because a controller that gives up would not terminate it."""
        if (now := self.state.clock.monotonic()) >= self._warning_at:
            self._warning_at = now + REMAINING_NODES_WARNING_SECONDS
            nodes = ", ".join(self.groups.instances) or "none"
            reservations = "cancelled" if self._are_reservations_cancelled else "not cancelled"
            LOG.warning("the run has ended; nodes that are not terminated: %s; reservations: %s", nodes, reservations)

    def _follow_terminations(self) -> None:
        """Complete lifecycle actions of the nodes after the end of the run."""
        now = self.state.clock.monotonic()
        if self._members_at is None or now >= self._members_at + MEMBERS_POLL_SECONDS:
            self._read_members(now)
            if self.groups.draining_nodes:
                self._read_reports()
                self._complete_terminations(set(self.state.control.unhealthy_nodes))

    def _stop_agents(self, outcome: Outcome) -> None:
        """Stop the jobs, after a last checkpoint that saves the progress since the previous one."""
        control = self.state.control
        if not control.stop:
            is_job_over = control.waiting_since is not None or outcome.state == "succeeded"
            self.state.update_control(stop=True, save_checkpoint=not is_job_over)
