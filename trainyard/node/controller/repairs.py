"""Repairs of nodes between two attempts: reset of GPUs, reboot, replacement."""

import logging

from trainyard.models.decision import AttemptDecision
from trainyard.models.run import NodeRepair
from trainyard.node.controller.replaced_nodes import ReplacementHistory
from trainyard.node.controller.run_state import RunState
from trainyard.node.controller.worker_groups import WorkerGroups

# A large instance with local disks takes minutes to boot.
REPAIR_TIMEOUT_SECONDS = 15 * 60.0
LOG = logging.getLogger("controller")


class Repairs:
    """Requests repairs of the agents, and replaces nodes by their groups."""

    def __init__(self, state: RunState, groups: WorkerGroups, history: ReplacementHistory) -> None:
        self._state, self._groups, self._history = state, groups, history

    def start(self, decision: AttemptDecision) -> None:
        """Start the actions of a decision. A node that was repaired before in this run is replaced."""
        control = self._state.control
        repairs = dict(control.repairs)
        for node, action in decision.actions.items():
            if action == "replace" or (action != "none" and node in control.repaired_nodes):
                evidence = [each.text for each in decision.evidence if each.node == node]
                self.replace(node, "; ".join(evidence) or action)
            elif action != "none":
                boot = self._state.node_states.latest[node].boot
                repairs[node] = NodeRepair(
                    number=decision.attempt, action=action, boot=boot, requested_at=decision.time
                )
                LOG.warning("%s: %s requested", node, action)
        if repairs != control.repairs:
            repaired = tuple(dict.fromkeys((*control.repaired_nodes, *repairs)))
            self._state.update_control(repairs=repairs, repaired_nodes=repaired)

    def replace(self, node: str, reason: str) -> None:
        """Mark a node unhealthy, so that its group replaces it. No attempt of this run uses it again."""
        self._groups.mark_unhealthy(node)
        self._history.add(node, reason)
        control = self._state.control
        self._state.update_control(
            unhealthy_nodes=(*control.unhealthy_nodes, node),
            healthy_nodes=tuple(other for other in control.healthy_nodes if other != node),
            repairs={other: repair for other, repair in control.repairs.items() if other != node},
        )

    def nodes_in_repair(self, now: float) -> set[str]:
        """Return the nodes whose repair has not ended. A repair that takes too long ends in a replacement."""
        for node, repair in list(self._state.control.repairs.items()):
            if self._has_ended(node, repair):
                LOG.info("%s: %s done", node, repair.action)
                repairs = {other: each for other, each in self._state.control.repairs.items() if other != node}
                self._state.update_control(repairs=repairs)
            elif now > repair.requested_at + REPAIR_TIMEOUT_SECONDS:
                reason = f"no {repair.action} within {REPAIR_TIMEOUT_SECONDS:.0f} s"
                LOG.warning("%s: %s: replaced", node, reason)
                self.replace(node, reason)
        return set(self._state.control.repairs)

    def _has_ended(self, node: str, repair: NodeRepair) -> bool:
        """Return whether the agent has reported the end of a repair. A reboot is a new boot."""
        states = self._state.node_states
        return states.boots.get(node, "") > repair.boot or (
            repair.action == "reset" and states.repaired.get(node, 0) >= repair.number
        )
