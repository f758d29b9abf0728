"""The attempts of one run: when the next one starts, on which nodes, and what follows when one fails."""

import logging
import secrets

from botocore.exceptions import BotoCoreError, ClientError

from trainyard.models.decision import AttemptStart
from trainyard.models.health_check import HealthCheckResult
from trainyard.models.manifest import Manifest
from trainyard.models.run import HealthCheckRequest, Master, Outcome
from trainyard.node.controller.account import Account
from trainyard.node.controller.failed_attempts import FailedAttempts
from trainyard.node.controller.health_checks import HealthChecks
from trainyard.node.controller.idle import IdleDetector
from trainyard.node.controller.liveness import Liveness
from trainyard.node.controller.node_selection import NodeSelection
from trainyard.node.controller.outcomes import create_completed_outcome, create_outcome
from trainyard.node.controller.rank_order import order_nodes
from trainyard.node.controller.repairs import Repairs
from trainyard.node.controller.replaced_nodes import ReplacementHistory
from trainyard.node.controller.run_state import RunState
from trainyard.node.controller.stragglers import Stragglers
from trainyard.node.controller.topology import Topology
from trainyard.node.controller.worker_groups import WorkerGroups

# Agents kill the ranks of an attempt that has failed on another node, and report within some seconds.
FAILURE_REPORT_TIMEOUT_SECONDS = 20.0
# A job that may continue with fewer nodes waits this long for a spare node or a fast replacement.
SMALLER_SIZE_SECONDS = 60.0
# If this number of health checks of nodes outside the attempt fail in a row, the nodes are probably not the cause. The
# next nodes are checked after a pause, because capacity for their replacements may be lost.
MAXIMUM_FAILED_CHECKS, CHECK_PAUSE_SECONDS = 3, 30 * 60.0
# Below the ports that Linux gives to outgoing connections (ip_local_port_range: 32768 to 60999).
MASTER_PORTS = range(20000, 30000)
LOG = logging.getLogger("controller")


class Attempts:
    """Attempts and health checks of one run."""

    def __init__(
        self,
        state: RunState,
        account: Account,
        groups: WorkerGroups,
        health_checks: HealthChecks,
        manifest: Manifest,
    ) -> None:
        self._state, self._groups, self.health_checks = state, groups, health_checks
        self._stack = manifest.stack
        self.liveness, self.idle_detector = Liveness(account, state.clock), IdleDetector()
        self.stragglers = Stragglers()
        self._topology = Topology(account)
        history = ReplacementHistory(state, self._topology)
        self.repairs = Repairs(state, groups, history)
        self.selection = NodeSelection(state, groups, self.liveness, self.repairs, history)
        self._failed_attempts = FailedAttempts(state, groups, self.repairs, self.liveness)
        self._failed_checks = 0  # of nodes outside the attempt, since the last check that passed
        self._next_check_at = 0.0  # monotonic; of nodes outside the attempt
        self._failed_at: float | None = None  # time.monotonic() of the first failure in the current attempt

    def advance(self, now: float) -> Outcome | None:
        """Decide on the current attempt, or start the next; return the outcome if the run is over."""
        state = self._state
        attempt, nodes = state.control.attempt, state.control.nodes
        self.selection.replace_broken(now)
        if attempt == 0 or state.control.waiting_since is not None:
            self.selection.replace_silent(now)
            return self._start_next_attempt(now) or self._handle_missing_nodes(now)
        if state.all_have_state("workers_done"):
            return create_completed_outcome(state, self._stack)
        # A node that drains saves a checkpoint with the other ranks, and reports when it has done so.
        departed = state.node_states.find_departed_nodes(nodes, {*state.members, *self._groups.draining_nodes})
        failed = state.node_states.failed_nodes(attempt, nodes)
        lost = {each.node: each.describe() for each in self.liveness.find_lost_nodes(nodes, failed)}
        if not (departed or failed or lost):
            return self._continue_attempt(attempt, nodes, now)
        if self._failed_at is None:
            self._failed_at = state.clock.monotonic()
            state.abort_attempt()  # ranks on other nodes may hang in a collective operation
        if not (departed or lost) and self._awaits_reports(attempt, nodes):
            return None
        self._failed_at = None
        return self._failed_attempts.decide(departed, lost) or self._start_next_attempt(now)

    def _awaits_reports(self, attempt: int, nodes: tuple[str, ...]) -> bool:
        """Return whether to wait: a node without a report may still report the cause, or become silent."""
        assert self._failed_at is not None
        unreported = self._state.node_states.unreported_nodes(attempt, nodes)
        has_time = self._state.clock.monotonic() < self._failed_at + FAILURE_REPORT_TIMEOUT_SECONDS
        return bool(unreported) and (has_time or self.liveness.may_become_silent(unreported, self._failed_at))

    def _continue_attempt(self, attempt: int, nodes: tuple[str, ...], now: float) -> Outcome | None:
        """Start an attempt with all nodes if the run has more nodes, remove surplus nodes, and check the idle limit."""
        state = self._state
        if state.run.nodes > len(nodes):
            if outcome := self._start_next_attempt(now, save_checkpoint=True):
                return outcome
        else:
            self._check_spares(nodes, now)
        self.selection.remove_surplus(now)
        if slow := self._find_unchecked_slow_nodes():
            return self._check_slow_nodes(slow, now)
        minutes = state.run.limits.idle_timeout_minutes
        detector, monotonic_now = self.idle_detector, state.clock.monotonic()
        reason = detector.find_idle_reason(attempt, nodes, minutes, monotonic_now) if minutes else None
        return create_outcome(state, "stopped", reason) if reason else None

    def _find_unchecked_slow_nodes(self) -> dict[str, str]:
        """Return node -> how one of its ranks is slower than the others, for nodes that were not checked for it."""
        control = self._state.control
        if control.health_check is not None or not self._state.run.limits.has_health_checks:
            return {}
        slow = {each.node: each.describe() for each in reversed(self.stragglers.find_slow_ranks())}
        return {node: text for node, text in slow.items() if node not in control.checked_slow_nodes}

    def _check_slow_nodes(self, slow: dict[str, str], now: float) -> Outcome | None:
        """Interrupt the attempt after a checkpoint, and repeat the health check of all nodes: it finds a slow GPU."""
        if self.selection.select(now, self._state.run.nodes) is None:
            return None  # the check, and with it the checkpoint, could not start now
        checked = (*self._state.control.checked_slow_nodes, *slow)
        self._state.update_control(checked_slow_nodes=checked)
        outcome = self._failed_attempts.decide((), {}, slow)
        return outcome or self._start_next_attempt(now, save_checkpoint=True)

    def _check_spares(self, nodes: tuple[str, ...], now: float) -> None:
        """Check the health of spare nodes while the job runs on others, so that they can replace these at once."""
        state = self._state
        request = state.control.health_check
        if request is not None:
            checks_spares = state.run.spares and not set(request.nodes) & set(nodes)
            if not checks_spares or set(request.nodes) - set(state.members):
                state.update_control(health_check=None)  # it was for new nodes that have been removed again
            else:
                self._apply_health_check(request, now)
        elif state.run.spares and state.run.limits.has_health_checks and not self._is_check_paused:
            unchecked = self.selection.find_usable(now) - set(nodes) - set(state.control.healthy_nodes)
            if ready := state.node_states.ready_nodes(unchecked):
                self._request_health_check((ready[0],), now)

    def _start_next_attempt(self, now: float, save_checkpoint: bool = False) -> Outcome | None:
        """Start the next attempt, or the next step towards it, if enough nodes are ready; return as `advance`."""
        control = self._state.control
        if control.health_check is not None:
            return self._conclude_health_check(control.health_check, now, save_checkpoint)
        if self._is_pausing(now):
            return None
        nodes = self.selection.select(now, self._state.run.nodes)
        if nodes is not None:
            self._use_nodes(nodes, now, save_checkpoint)
        return None

    def _is_pausing(self, now: float) -> bool:
        """Return whether the next attempt must wait because a service did not respond to the last."""
        latest = self._state.control.latest_decision
        if latest is None or not latest.retry_seconds or latest.attempt != self._state.control.attempt:
            return False
        return now < latest.time + latest.retry_seconds

    def _use_nodes(self, nodes: tuple[str, ...], now: float, save_checkpoint: bool = False) -> None:
        """Start an attempt on these nodes, or request a health check if some of them have not passed one."""
        state = self._state
        latest = state.control.latest_decision
        swapped = latest.swaps_node if latest is not None and latest.attempt == state.control.attempt else None
        nodes = order_nodes(nodes, self._topology, state.control.nodes, swapped)
        healthy = frozenset(state.control.healthy_nodes)
        new = tuple(node for node in nodes if node not in healthy)
        if not new or not state.run.limits.has_health_checks:
            self._start_attempt(nodes, save_checkpoint)
            return
        if self._is_running and self._is_check_paused:
            return
        # A running job is not interrupted for a health check: only its new nodes are checked.
        # Ranks of a lost attempt have no peers to save checkpoints with.
        is_interrupted = save_checkpoint and not self._is_running
        self._request_health_check(new if self._is_running else nodes, now, is_interrupted)

    @property
    def _is_running(self) -> bool:
        """Whether an attempt runs."""
        return self._state.control.attempt > 0 and self._state.control.waiting_since is None

    @property
    def _is_check_paused(self) -> bool:
        """Whether nodes outside the attempt are not checked, because several of them have failed."""
        return self._state.clock.monotonic() < self._next_check_at

    def _request_health_check(self, nodes: tuple[str, ...], now: float, save_checkpoint: bool = False) -> None:
        number = self._state.control.health_check_count + 1
        request = HealthCheckRequest(number=number, nodes=nodes, master=self._choose_master(nodes), requested_at=now)
        self._state.update_control(health_check=request, health_check_count=number, save_checkpoint=save_checkpoint)
        LOG.info("health check %d of %s", number, ", ".join(request.nodes))

    def _conclude_health_check(self, request: HealthCheckRequest, now: float, save_checkpoint: bool) -> Outcome | None:
        """Decide on a health check that is over, and start the next step; return the outcome if the run is over."""
        state = self._state
        if departed := state.node_states.find_departed_nodes(request.nodes, state.members):
            LOG.warning("health check %d is cancelled: %s left its group", request.number, departed[0])
            state.update_control(health_check=None)
            return None
        result = self._apply_health_check(request, now)
        if result is None:
            return None
        if result.decision == "failed" and not self._is_running:
            return create_outcome(state, "failed", f"health check of the nodes: {result.reason}")
        return self._start_next_attempt(now, save_checkpoint)

    def _apply_health_check(self, request: HealthCheckRequest, now: float) -> HealthCheckResult | None:
        """Return the result of a health check, and replace the nodes that it found unhealthy; None until it is over."""
        slow = self._state.control.checked_slow_nodes
        result = self.health_checks.conclude(
            request, self._state.run, self._state.members, now, slow, during_attempt=self._is_running
        )
        if result is None:
            return None
        LOG.info("health check %d %s: %s", request.number, result.decision, result.reason)
        # While an attempt runs, only nodes outside it are checked. If the check fails, they are replaced.
        is_failed = result.decision == "failed" and self._is_running
        failed = request.nodes if is_failed else result.unhealthy_nodes
        for node in failed:
            self.repairs.replace(node, f"health check {request.number}: {result.reason}")
        if failed and self._is_running:
            self._pause_checks()
        elif result.decision == "passed":
            self._failed_checks = 0
        has_passed, control = result.decision == "passed", self._state.control
        checks_all = has_passed and set(control.nodes) <= set(request.nodes)
        self._state.update_control(
            health_check=None,
            healthy_nodes=tuple(dict.fromkeys((*control.healthy_nodes, *(request.nodes if has_passed else ())))),
            last_passed_check=control.attempt + 1 if checks_all else control.last_passed_check,
        )
        return result

    def _pause_checks(self) -> None:
        """Count a failed health check of nodes outside the attempt. After several in a row, the next one waits."""
        self._failed_checks += 1
        if self._failed_checks >= MAXIMUM_FAILED_CHECKS:
            self._next_check_at = self._state.clock.monotonic() + CHECK_PAUSE_SECONDS
            text = "health checks of spare and added nodes failed in a row: the next one is in"
            LOG.warning("%d %s %.0f minutes", self._failed_checks, text, CHECK_PAUSE_SECONDS / 60)

    def failed_health_check_reason(self) -> str:
        """Return the suffix of a message: the reason of the latest health check, unless it passed."""
        latest = self.health_checks.latest
        passed = latest is None or latest.decision == "passed"
        return "" if latest is None or passed else f"; health check of the nodes: {latest.reason}"

    def _start_attempt(self, nodes: tuple[str, ...], save_checkpoint: bool = False) -> None:
        attempt, master = self._state.control.attempt + 1, self._choose_master(nodes)
        self._state.update_control(
            attempt=attempt, nodes=nodes, master=master, waiting_since=None, save_checkpoint=save_checkpoint
        )
        LOG.info("attempt %d on %s, master %s:%d", attempt, ", ".join(nodes), master.address, master.port)
        start = AttemptStart(
            attempt=attempt, time=self._state.clock.time(), nodes=nodes, run_nodes=self._state.run.nodes
        )
        try:
            self._state.data.write(self._state.layout.attempt_start(attempt), start.model_dump_json().encode())
        except (BotoCoreError, ClientError) as error:  # only `trainyard why` reads it
            LOG.warning("the start of attempt %d is not stored: %s", attempt, error)

    def _choose_master(self, nodes: tuple[str, ...]) -> Master:
        """Return the master of a rendezvous of these nodes, on another port than that of the previous attempt."""
        previous = self._state.control.master.port if self._state.control.master else None
        port = secrets.choice([port for port in MASTER_PORTS if port != previous])
        return Master(address=self._state.node_states.latest[nodes[0]].address, port=port)

    def _handle_missing_nodes(self, now: float) -> Outcome | None:
        """Continue with fewer nodes if the job allows it; end the run if lost nodes are not replaced in time.

        The nodes that wait are billed.
        """
        state = self._state
        since, minutes = state.control.waiting_since, state.run.limits.replacement_minutes
        if since is None or state.control.health_check is not None:
            return None
        # A job that already ran on fewer nodes continues at once if as many are ready.
        is_due, size = now > since + SMALLER_SIZE_SECONDS, len(state.control.nodes)
        nodes = self.selection.select_smaller_size(now) if is_due or size < state.run.nodes else None
        if nodes is not None and (is_due or len(nodes) == size):
            LOG.warning("attempt %d continues on %d of %d nodes", state.control.attempt, len(nodes), state.run.nodes)
            self._use_nodes(nodes, now)
            return None
        if now <= since + minutes * 60:
            return None
        if nodes := self.selection.select(now, len(state.control.nodes)):
            self._use_nodes(nodes, now)  # no nodes could be added: continue with the previous number
            return None
        ready = len(state.node_states.ready_nodes(self.selection.find_intact(now)))
        time_text = f"{minutes:g} minutes (launch.replacement_minutes) after attempt {state.control.attempt} failed"
        text = f"{ready} of {state.run.nodes} nodes are ready {time_text}{self.failed_health_check_reason()}"
        reason = f"{text}. Set job.resume: {state.run.run} to continue from its newest checkpoint, if it has one"
        return create_outcome(state, "failed", reason, state.control.latest_decision)
