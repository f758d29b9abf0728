"""Decisions on failed attempts: collects the evidence, stores the decision, and starts its actions."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from trainyard.models.decision import AttemptDecision, NodeAction
from trainyard.models.run import Outcome
from trainyard.node.controller.failure_analysis import AttemptFailure, decide
from trainyard.node.controller.liveness import Liveness
from trainyard.node.controller.node_states import REPAIR_ACTIONS
from trainyard.node.controller.outcomes import create_outcome
from trainyard.node.controller.repairs import Repairs
from trainyard.node.controller.run_state import RunState
from trainyard.node.controller.worker_groups import WorkerGroups

LOG = logging.getLogger("controller")


class FailedAttempts:
    """Decides on the failed attempts of one run."""

    def __init__(self, state: RunState, groups: WorkerGroups, repairs: Repairs, liveness: Liveness) -> None:
        self._state, self._groups, self._repairs, self._liveness = state, groups, repairs, liveness

    def decide(
        self, departed: Sequence[str], lost: Mapping[str, str], slow: Mapping[str, str] | None = None
    ) -> Outcome | None:
        """Decide on the current attempt; return the outcome if another attempt would fail again.

        `departed`: nodes that left their group. `lost`: node -> why it is lost although it is in its group.
        `slow`: node -> how one of its ranks is slower than the others.
        """
        state, control = self._state, self._state.control
        newest_checkpoint = state.find_newest_checkpoint()
        last_step, latest = self._liveness.last_step, control.latest_decision
        has_new_steps = latest is not None and last_step > latest.last_step
        has_progress = has_new_steps or newest_checkpoint != control.newest_checkpoint
        failure = AttemptFailure(
            attempt=control.attempt,
            time=state.clock.time(),
            last_step=last_step,
            nodes=control.nodes,
            processes=state.run.processes_per_node,
            failures=state.node_states.failures.get(control.attempt, ()),
            departed=departed,
            silent={node: text for node, text in lost.items() if node not in departed},
            hardware=self._hardware_findings(control.nodes),
            slow=slow or {},
            has_progress=has_progress,
            outage_limit_seconds=state.run.limits.replacement_minutes * 60,
            were_checked=control.last_passed_check == control.attempt,
            can_check=state.run.limits.has_health_checks,
        )
        decision = decide(failure, control.decisions)
        level = logging.WARNING if decision.end_reason is None else logging.ERROR
        LOG.log(level, "attempt %d failed: %s", decision.attempt, decision.summary())
        for evidence in decision.evidence:
            LOG.info("evidence: %s: %s", evidence.kind, evidence.text)
        earlier = () if has_progress else control.decisions
        if decision.end_reason is not None:
            self._store(decision, earlier, newest_checkpoint, {})
            minutes = state.run.limits.keep_after_failure_minutes
            return create_outcome(state, "failed", decision.end_reason, decision, keep_minutes=minutes)
        replaced = self._repairs.find_replaced_nodes(decision)
        self._store(decision, earlier, newest_checkpoint, self._repairs.plan(decision, replaced))
        self._repairs.start(decision, replaced)
        return None

    def _hardware_findings(self, nodes: Sequence[str]) -> dict[str, list[tuple[NodeAction, str]]]:
        """Return the findings of the nodes' health monitors that need an action."""
        return {
            node: [
                (action, each.describe(node)) for each in findings for action in REPAIR_ACTIONS if action == each.action
            ]
            for node, findings in self._state.node_states.hardware_findings(nodes).items()
        }

    def _store(
        self,
        decision: AttemptDecision,
        earlier: tuple[AttemptDecision, ...],
        newest_checkpoint: str,
        plan: Mapping[str, Any],
    ) -> None:
        """Write the decision, from which `trainyard why` explains it, and its consequences for the control file.

        `plan`: changes that start its actions. They are stored at once: a restarted controller would not repeat them.
        """
        state, control = self._state, self._state.control
        content = decision.model_dump_json(indent=1).encode()
        state.data.write(state.layout.decision(decision.attempt), content)
        unverified = set(decision.nodes) if decision.checks_nodes else set(decision.actions)
        state.update_control(
            waiting_since=decision.time,
            decisions=(*earlier, decision),
            newest_checkpoint=newest_checkpoint,
            healthy_nodes=tuple(node for node in control.healthy_nodes if node not in unverified),
            **plan,
        )
