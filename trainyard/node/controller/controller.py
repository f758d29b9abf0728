"""The controller on the head: `python -m trainyard.node.controller`, run by systemd.

It decides on the health checks and attempts of a run. It requests a health check before an attempt uses new nodes,
starts an attempt when all nodes are ready and healthy, and starts the next attempt when one fails or loses a node. It
ends the run when the job has completed, which the results in S3 must confirm, or when another attempt would fail again.
Then it terminates the nodes, at once or after the time for which they are kept for another run. Until then it renews
the lease. All its state is in S3, so that it may be killed and restarted at any time.
"""

import logging
import secrets
import time

from botocore.exceptions import ClientError
from pydantic import ValidationError

from trainyard.aws.s3 import Bucket
from trainyard.log import set_run
from trainyard.models.events import ActivityEvent, AgentEvent, HealthCheckEvent
from trainyard.models.layout import CURRENT_RUN, MANIFEST, RunLayout, complete_checkpoints
from trainyard.models.manifest import Manifest
from trainyard.models.metrics import Results
from trainyard.models.run import Control, FailedAttempt, HealthCheckRequest, Master, Outcome, RunRecord
from trainyard.models.streams import Cursor, node_events
from trainyard.node.controller.deadline import RunDeadline
from trainyard.node.controller.failure_analysis import (
    NodeStates,
    create_failed_attempt,
    find_first_failure,
    find_permanent_failure,
)
from trainyard.node.controller.health_checks import HealthChecks
from trainyard.node.controller.idle import IdleDetector
from trainyard.node.controller.rank_order import RankOrder
from trainyard.node.controller.reclaims import ReclaimWatch
from trainyard.node.controller.reservations import RunReservations
from trainyard.node.controller.startup_watch import StartupWatch
from trainyard.node.controller.worker_groups import WorkerGroups
from trainyard.node.identity import Node
from trainyard.times import format_time

POLL_SECONDS = 1.0
MEMBERS_POLL_SECONDS = 5.0
# The lease is renewed four times in its duration, so that it survives a failed call.
RENEWALS_PER_LEASE = 4
# The controller terminates kept nodes; the lease does so a little later if the controller does not run.
KEPT_LEASE_MARGIN_SECONDS = 60.0
# A Capacity Block may become active some minutes after its start, and Auto Scaling retries a failed launch after some
# minutes. The nodes that started meanwhile are paid for anyway.
SCHEDULED_NODES_TIMEOUT_SECONDS = 15 * 60.0
# Agents kill the ranks of an attempt that has failed on another node, and report within some seconds.
FAILURE_REPORT_TIMEOUT_SECONDS = 20.0
# Below the ports that Linux gives to outgoing connections (ip_local_port_range: 32768 to 60999).
MASTER_PORTS = range(20000, 30000)
LOG = logging.getLogger("controller")


class RunController:
    """Controls one run from its record to its outcome."""

    def __init__(self, node: Node, manifest: Manifest, run: RunRecord) -> None:
        self.run, self.layout, self._stack = run, RunLayout(run.run), manifest.stack
        self.data = Bucket(manifest.data_bucket, node.region)
        self.node_states, self.idle_detector = NodeStates(), IdleDetector()
        self.health_checks = HealthChecks(node, manifest, run.run, self.data)
        self._rank_order, self._startup = RankOrder(node.region), StartupWatch()
        self.reservations = RunReservations(node.region)
        self._events = Cursor(self.data, self.layout.events)
        self._members: list[str] = []
        self._surplus_since: dict[str, float] = {}
        self._removed: set[str] = set()
        self._members_at = self._renewed_at = self._failed_at = 0.0
        self._has_ended = False
        self._kept_until: float | None = None  # of the last renewal for kept nodes
        self._deadline = RunDeadline(node.region)
        content = self.data.find(self.layout.control)
        new = Control(healthy_nodes=run.healthy_nodes)
        self.control = new if content is None else Control.model_validate_json(content)
        self.groups = WorkerGroups(manifest.groups, node.region, self._nodes_in_use())
        self._reclaims = ReclaimWatch(manifest.groups, node.region)

    def _nodes_in_use(self) -> tuple[str, ...]:
        """Return the nodes of the current attempt, unless it has failed, and of the current health check."""
        checked = self.control.health_check.nodes if self.control.health_check else ()
        return checked if self.control.waiting_since is not None else (*self.control.nodes, *checked)

    def step(self) -> Outcome | None:
        """Read new events, check all deadlines, update `control.json`; return the outcome if the run is over."""
        self._read_events()
        now, limits = time.time(), self.run.limits
        if now - self._members_at >= MEMBERS_POLL_SECONDS:
            self._members, self._members_at = self.groups.members(), now
            if self._reclaims.has_new_reclaim():
                self._update_control(checkpoint_requests=self.control.checkpoint_requests + 1)
        if not self.control.started and (self._all_have_state("workers_up") or self._all_have_state("workers_done")):
            self._update_control(started=True)
        if now > self._update_deadline(now).deadline:
            return self.create_outcome("failed", self._describe_deadline())
        if self._deadline.unusable is not None:
            fix = f"Set another block (capacity.capacity_block.id): trainyard blocks -s {self._stack}"
            return self.create_outcome("failed", f"{self._deadline.unusable}. {fix}")
        if not self.control.started and now > self.run.start + limits.startup_timeout_minutes * 60:
            text = f"the job did not start within {limits.startup_timeout_minutes:g} minutes"
            text += f" (launch.startup_timeout_minutes){self._failed_health_check_reason()}"
            return self.create_outcome("failed", text)
        if reason := self._find_missing_capacity(now) or self._find_failed_startup(now):
            return self.create_outcome("failed", reason)
        if self._is_renewal_due(now):
            self._renew_lease(now, self.run.lease_end(now))
        return self._advance(now)

    def _update_deadline(self, now: float) -> RunRecord:
        """Return the run with its deadline now. A changed deadline is published, and the lease renewed at once."""
        deadline = self._deadline.find(self.run, self.control, now)
        if deadline != (self.run.deadline if self.control.deadline is None else self.control.deadline):
            LOG.info("the run's deadline is now %s", format_time(deadline))
            self._update_control(deadline=deadline)
            self._renewed_at = 0.0
        self.run = self.run.model_copy(update={"deadline": deadline})
        return self.run

    def _describe_deadline(self) -> str:
        """Return the reason for the end of the run at its deadline."""
        resume = f"set job.resume: {self.run.run} to continue from its newest checkpoint, if it has one"
        if self.run.limited_by_capacity:
            end = format_time(self.run.deadline)
            return f"the capacity of the run (capacity) was usable until {end}: use other capacity, and {resume}"
        minutes = self.run.limits.time_limit_minutes
        return f"the time limit of {minutes:g} minutes is over (job.time_limit_minutes): increase it, and {resume}"

    def _find_missing_capacity(self, now: float) -> str | None:
        """Return the reason to end the run if AWS has not started all nodes in time after the scheduled start."""
        start, nodes = self.run.scheduled_start, self.run.nodes
        is_starting = self.control.attempt == 0 and self.control.health_check_count == 0
        if start is None or now <= start + SCHEDULED_NODES_TIMEOUT_SECONDS:
            return None
        if not is_starting or len(self._members) >= nodes:
            return None
        minutes = SCHEDULED_NODES_TIMEOUT_SECONDS / 60
        text = f"AWS started {len(self._members)} of {nodes} nodes within {minutes:g} minutes of the scheduled start"
        fix = f"Reduce nodes, then trainyard up -s {self._stack}, or contact AWS support about the Capacity Block"
        return f"{': '.join([text, *self.groups.failed_launches(start)])}. {fix}"

    def _find_failed_startup(self, now: float) -> str | None:
        """Return the reason to end the run before its first attempt if the startup of a node has failed."""
        return None if self.control.attempt else self._startup.find_failure(self._members, now)

    def _is_renewal_due(self, now: float) -> bool:
        return now - self._renewed_at >= self.run.limits.lease_minutes * 60 / RENEWALS_PER_LEASE

    def _renew_lease(self, now: float, end: float) -> None:
        """Move the end of the lease and of the run's capacity reservations, which may be larger than the run."""
        self.groups.renew_lease(end)
        self._renewed_at = now
        self.reservations.extend(self.run.reservations, end)
        if self.control.attempt and self.control.waiting_since is None and self.run.nodes == len(self.control.nodes):
            self.reservations.reduce(self.run.reservations, now)
        else:
            self.reservations.reset_unused_timers()

    def _read_events(self) -> None:
        for event in node_events(self._events):
            self._startup.update(event)
            if isinstance(event, AgentEvent):
                self.node_states.update(event)
            elif isinstance(event, ActivityEvent):
                self.idle_detector.update(event)
            elif isinstance(event, HealthCheckEvent):
                self.health_checks.update(event)

    def _update_control(self, **changes: object) -> None:
        """Change `control.json` in S3: agents read it at their next poll, a restarted controller at its start."""
        self.control = self.control.model_copy(update=changes)
        self.data.write(self.layout.control, self.control.model_dump_json().encode())

    def _all_have_state(self, state: str) -> bool:
        nodes = self.control.nodes
        return bool(nodes) and self.node_states.all_have_state(state, self.control.attempt, nodes)

    def _advance(self, now: float) -> Outcome | None:
        """Decide on the current attempt, or start the next; return the outcome if the run is over."""
        attempt, nodes = self.control.attempt, self.control.nodes
        if attempt == 0 or self.control.waiting_since is not None:
            return self._start_next_attempt(now) or self._handle_missing_nodes(now)
        if self._all_have_state("workers_done"):
            return self._verify_results()
        lost_node = self.node_states.find_lost_node(nodes, self._members)
        failed_nodes = self.node_states.failed_nodes(attempt, nodes)
        if lost_node is None and not failed_nodes:
            return self._continue_attempt(attempt, nodes, now)
        if not self._failed_at:
            self._failed_at = now
            self._update_control(aborted_attempt=attempt)  # ranks on other nodes may hang in a collective operation
        unreported = self.node_states.unreported_nodes(attempt, nodes)
        if lost_node is None and unreported and now - self._failed_at < FAILURE_REPORT_TIMEOUT_SECONDS:
            return None  # the first report may be caused by a node that has not reported yet
        return self._fail_attempt(attempt, lost_node)

    def _continue_attempt(self, attempt: int, nodes: tuple[str, ...], now: float) -> Outcome | None:
        """Start an attempt with all nodes if the run has more nodes, remove surplus nodes, and check the idle limit."""
        if self.run.nodes > len(nodes):
            if outcome := self._start_next_attempt(now, save_checkpoint=True):
                return outcome
        elif self.control.health_check is not None:
            self._update_control(health_check=None)  # it was for new nodes that have been removed again
        self._remove_surplus_nodes(now)
        minutes = self.run.limits.idle_timeout_minutes
        reason = self.idle_detector.find_idle_reason(attempt, nodes, minutes, now) if minutes else None
        return self.create_outcome("stopped", reason) if reason else None

    def _fail_attempt(self, attempt: int, lost_node: str | None) -> Outcome | None:
        """Record that an attempt failed or lost a node; return the outcome if another attempt would fail again."""
        cause = find_first_failure(self.node_states.failures.get(attempt, ()))
        previous = self.control.failed_attempt
        failed = create_failed_attempt(
            previous, attempt, self._checkpoints(), cause, is_node_loss=lost_node is not None
        )
        if lost_node:
            LOG.warning("attempt %d failed: %s left its group", attempt, lost_node)
        else:
            LOG.warning("attempt %d failed: %s", attempt, cause[1].message if cause else "no rank reported a cause")
        self._failed_at = 0.0
        reason = find_permanent_failure(previous, failed)
        self._update_control(waiting_since=time.time(), failed_attempt=failed)
        if reason is None:
            return None
        return self.create_outcome("failed", reason, failed, keep_minutes=self.run.limits.keep_after_failure_minutes)

    def _start_next_attempt(self, now: float, save_checkpoint: bool = False) -> Outcome | None:
        """Start the next attempt, or the next step towards it, if enough nodes are ready; return as `step`."""
        if self.control.health_check is not None:
            return self._conclude_health_check(self.control.health_check, now, save_checkpoint)
        healthy = set(self._members) - set(self.control.unhealthy_nodes)
        nodes = self.node_states.select_nodes(healthy, self.run.nodes)
        if nodes is not None:
            self._use_nodes(nodes, now, save_checkpoint)
        return None

    def _use_nodes(self, nodes: tuple[str, ...], now: float, save_checkpoint: bool = False) -> None:
        """Start an attempt on these nodes, or request a health check if some of them have not passed one."""
        nodes = self._rank_order.order(nodes, self.control.nodes)
        new = tuple(node for node in nodes if node not in self.control.healthy_nodes)
        if not new or not self.run.limits.health_check_timeout_minutes:
            self._start_attempt(nodes, save_checkpoint)
            return
        # A running job is not interrupted for a health check: only its new nodes are checked.
        is_running = self.control.attempt > 0 and self.control.waiting_since is None
        number = self.control.health_check_count + 1
        checked = new if is_running else nodes
        request = HealthCheckRequest(
            number=number, nodes=checked, master=self._choose_master(checked), requested_at=now
        )
        # Ranks of a lost attempt have no peers to save checkpoints with.
        self._update_control(health_check=request, health_check_count=number, save_checkpoint=False)
        LOG.info("health check %d of %s", number, ", ".join(request.nodes))

    def _conclude_health_check(self, request: HealthCheckRequest, now: float, save_checkpoint: bool) -> Outcome | None:
        """Decide on a health check that is over, and start the next step; return the outcome if the run is over."""
        if lost_node := self.node_states.find_lost_node(request.nodes, self._members):
            LOG.warning("health check %d is cancelled: %s left its group", request.number, lost_node)
            self._update_control(health_check=None)
            return None
        unhealthy, healthy = self.control.unhealthy_nodes, self.control.healthy_nodes
        result = self.health_checks.conclude(request, self.run, self._members, len(unhealthy), now)
        if result is None:
            return None
        LOG.info("health check %d %s: %s", request.number, result.decision, result.reason)
        for node in result.unhealthy_nodes:
            self.groups.mark_unhealthy(node)
        passed = request.nodes if result.decision == "passed" else ()
        self._update_control(
            health_check=None,
            healthy_nodes=(*healthy, *passed),
            unhealthy_nodes=(*unhealthy, *result.unhealthy_nodes),
        )
        if result.decision == "failed":
            return self.create_outcome("failed", f"health check of the nodes: {result.reason}")
        return self._start_next_attempt(now, save_checkpoint)

    def _failed_health_check_reason(self) -> str:
        """Return the suffix of a message: the reason of the latest health check, unless it passed."""
        latest = self.health_checks.latest
        passed = latest is None or latest.decision == "passed"
        return "" if latest is None or passed else f"; health check of the nodes: {latest.reason}"

    def _start_attempt(self, nodes: tuple[str, ...], save_checkpoint: bool = False) -> None:
        attempt, master = self.control.attempt + 1, self._choose_master(nodes)
        self._update_control(
            attempt=attempt, nodes=nodes, master=master, waiting_since=None, save_checkpoint=save_checkpoint
        )
        LOG.info("attempt %d on %s, master %s:%d", attempt, ", ".join(nodes), master.address, master.port)

    def _choose_master(self, nodes: tuple[str, ...]) -> Master:
        """Return the master of a rendezvous of these nodes, on another port than that of the previous attempt."""
        previous = self.control.master.port if self.control.master else None
        port = secrets.choice([port for port in MASTER_PORTS if port != previous])
        return Master(address=self.node_states.latest[nodes[0]].address, port=port)

    def _handle_missing_nodes(self, now: float) -> Outcome | None:
        """End the run if lost nodes are not replaced in time, because the waiting nodes are billed."""
        since, minutes = self.control.waiting_since, self.run.limits.startup_timeout_minutes
        if since is None or now <= since + minutes * 60 or self.control.health_check is not None:
            return None
        healthy = set(self._members) - set(self.control.unhealthy_nodes)
        if nodes := self.node_states.select_nodes(healthy, len(self.control.nodes)):
            self._use_nodes(nodes, now)  # no nodes could be added: continue with the previous number
            return None
        ready = len(self.node_states.ready_nodes(self._members))
        time_text = f"{minutes:g} minutes (launch.startup_timeout_minutes) after attempt {self.control.attempt} failed"
        text = f"{ready} of {self.run.nodes} nodes are ready {time_text}{self._failed_health_check_reason()}"
        reason = f"{text}. Set job.resume: {self.run.run} to continue from its newest checkpoint, if it has one"
        return self.create_outcome("failed", reason, self.control.failed_attempt)

    def _remove_surplus_nodes(self, now: float) -> None:
        """Terminate nodes that no attempt has used within the startup timeout: their launch may have been killed."""
        surplus = set(self._members) - set(self.control.nodes)
        self._surplus_since = {node: self._surplus_since.get(node, now) for node in surplus}
        for node, since in self._surplus_since.items():
            if now > since + self.run.limits.startup_timeout_minutes * 60 and node not in self._removed:
                LOG.warning("no attempt uses %s: it is terminated", node)
                try:
                    self.groups.remove(node)
                    self._removed.add(node)
                except ClientError as error:  # the job continues, and the next step repeats it
                    LOG.error("%s was not terminated: %s", node, error)

    def _checkpoints(self) -> list[str]:
        keys = list(self.data.keys(self.layout.checkpoints))
        # The format of a custom job's checkpoints is not known: any new object is progress.
        return keys if self.run.job.train is None else complete_checkpoints(keys, self.layout.checkpoints)

    def _verify_results(self) -> Outcome:
        """Return the outcome of a run whose workers have all completed, from its results in S3."""
        if self.run.job.train is None:
            return self._succeed("all ranks ended with exit code 0")
        key = f"{self.layout.results}results.json"
        content = self.data.find(key)
        if content is None:
            return self._fail_results(f"s3://{self.data.name}/{key} does not exist")
        try:
            results = Results.model_validate_json(content)
        except ValidationError as error:
            return self._fail_results(f"s3://{self.data.name}/{key} is not valid ({error})")
        if not self._checkpoints():
            return self._fail_results(f"s3://{self.data.name}/{self.layout.checkpoints} has no complete checkpoint")
        return self._succeed(f"{results.steps} steps, last loss {results.last_loss:.4f}")

    def _succeed(self, reason: str) -> Outcome:
        return self.create_outcome("succeeded", reason, keep_minutes=self.run.limits.keep_after_success_minutes)

    def _fail_results(self, reason: str) -> Outcome:
        """Return the outcome of a run whose workers have all completed, without valid results."""
        fix = f"Read the output of the ranks: trainyard logs -s {self._stack}"
        text = f"all ranks ended with exit code 0, but {reason}. {fix}"
        return self.create_outcome("failed", text, keep_minutes=self.run.limits.keep_after_failure_minutes)

    def create_outcome(
        self, state: str, reason: str, failed: FailedAttempt | None = None, *, keep_minutes: float = 0.0
    ) -> Outcome:
        """Return the outcome of the run now. `failed`: the attempt whose failure ends the run, if any.

        `keep_minutes`: for how long the nodes are kept for another run, at most until the deadline of this run.
        """
        now = time.time()
        kept_until = min(now + keep_minutes * 60, self.run.deadline)
        return Outcome.model_validate(
            {
                "state": state,
                "reason": reason,
                "attempts": self.control.attempt,
                "ended_at": now,
                "failed_node": failed.failed_node if failed else None,
                "failure": failed.failure if failed else None,
                "launch_failed": state == "failed" and not self.control.started,
                "nodes_kept_until": kept_until if kept_until > now else None,
            }
        )

    def write_outcome(self, outcome: Outcome) -> bool:
        """Record the end of the run; return False when a launch or `trainyard stop` has recorded another outcome."""
        if not self.data.create(self.layout.outcome, outcome.model_dump_json().encode()):
            return False
        LOG.info("run %s: %s", outcome.state, outcome.reason)
        return True

    def keep_nodes(self, outcome: Outcome, now: float) -> None:
        """Stop the agents' jobs, and renew the lease of the nodes, which wait for another run. Idempotent.

        A launch that starts another run on the nodes may keep them longer than the deadline of this run.
        """
        assert outcome.nodes_kept_until is not None
        self._stop_agents(outcome)
        if self._is_renewal_due(now) or outcome.nodes_kept_until != self._kept_until:
            end = min(now + self.run.limits.lease_minutes * 60, outcome.nodes_kept_until + KEPT_LEASE_MARGIN_SECONDS)
            self._renew_lease(now, end)
            self._kept_until = outcome.nodes_kept_until

    def end_run(self, outcome: Outcome) -> bool:
        """Terminate the nodes, and return whether the reservations are cancelled: repeat it until then. Idempotent."""
        if not self._has_ended:
            self._stop_agents(outcome)
            try:
                if self.run.scheduled_start is not None:
                    self.groups.cancel_scheduled_start()
            finally:
                self.groups.scale_to_zero()
            self._has_ended = True
        return self.reservations.cancel(() if outcome.keeps_reservations else self.run.reservations)

    def _stop_agents(self, outcome: Outcome) -> None:
        """Stop the jobs, after a last checkpoint that saves the progress since the previous one."""
        if not self.control.stop:
            is_job_over = self.control.waiting_since is not None or outcome.state == "succeeded"
            self._update_control(stop=True, save_checkpoint=not is_job_over)


class Controller:
    """Reads the record of the current run and controls that run; between runs it waits."""

    def __init__(self, node: Node, manifest: Manifest) -> None:
        self._node = node
        self._staging = Bucket(manifest.staging_bucket, node.region)
        self._data = Bucket(manifest.data_bucket, node.region)
        self._current: RunController | None = None
        self._ended_run: str | None = None

    def step(self) -> None:
        """Advance the current run, if any."""
        content = self._staging.find(CURRENT_RUN)
        if content is None:
            return
        run = RunRecord.model_validate_json(content)
        if run.run == self._ended_run:
            return
        if self._current is None or self._current.run.run != run.run:
            # An update may have changed the manifest since this process has started.
            manifest = Manifest.model_validate_json(self._staging.read(MANIFEST))
            self._current = RunController(self._node, manifest, run)
            set_run(run.run)
            LOG.info("controls a run of %d nodes x %d processes", run.nodes, run.processes_per_node)
        self._current.run = run  # the launch may have added nodes to it, or removed them again
        # The launch, `trainyard stop`, or a previous controller that was killed may have written the outcome.
        content = self._data.find(RunLayout(run.run).outcome)
        outcome = None if content is None else Outcome.model_validate_json(content)
        if outcome is None:
            outcome = self._current.step()
            if outcome is None or not self._current.write_outcome(outcome):
                return  # the next step reads an outcome that was recorded meanwhile
        if outcome.keeps_nodes(now := time.time()):
            self._current.keep_nodes(outcome, now)
        # Until its reservations are cancelled, which are billed, the run is ended again in the next steps.
        elif self._current.end_run(outcome):
            self._ended_run, self._current = run.run, None
