"""Repairs of nodes between two attempts: reset of GPUs, reboot, replacement."""

import logging
from collections.abc import Collection
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from trainyard.models.decision import AttemptDecision
from trainyard.models.run import NodeRepair
from trainyard.node.controller.replaced_nodes import ReplacementHistory
from trainyard.node.controller.run_state import RunState
from trainyard.node.controller.worker_groups import WorkerGroups

# A large instance with local disks takes minutes to boot.
REPAIR_TIMEOUT_SECONDS = 15 * 60.0
LOG = logging.getLogger("controller")


class Repairs:
    """Requests repairs from agents, and marks nodes unhealthy so that their groups replace them."""

    def __init__(self, state: RunState, groups: WorkerGroups, history: ReplacementHistory) -> None:
        self._state, self._groups, self._history = state, groups, history

    def find_replaced_nodes(self, decision: AttemptDecision) -> list[str]:
        """Return the nodes that a decision replaces: also those that need a second repair in this run."""
        repaired = self._state.control.repaired_nodes
        return [
            node
            for node, action in decision.actions.items()
            if action == "replace" or (action != "none" and node in repaired)
        ]

    def plan(self, decision: AttemptDecision, replaced: Collection[str]) -> dict[str, Any]:
        """Return the changes of the control file that start the actions of a decision, to be stored with it."""
        control = self._state.control
        repairs = {node: repair for node, repair in control.repairs.items() if node not in replaced}
        for node, action in decision.actions.items():
            if action != "none" and node not in replaced:
                boot = self._state.node_states.latest[node].boot
                repairs[node] = NodeRepair(
                    number=decision.attempt, action=action, boot=boot, requested_at=decision.time
                )
        return {
            "repairs": repairs,
            "repaired_nodes": tuple(dict.fromkeys((*control.repaired_nodes, *repairs))),
            "unhealthy_nodes": tuple(dict.fromkeys((*control.unhealthy_nodes, *replaced))),
        }

    def start(self, decision: AttemptDecision, replaced: Collection[str]) -> None:
        """Let the groups replace nodes of a decision that is stored. `mark_unhealthy_nodes` repeats what fails."""
        for node in replaced:
            self._mark(node)
            self._history.add(node, "; ".join(each.text for each in decision.evidence if each.node == node))

    def replace(self, node: str, reason: str, *, is_host_fault: bool = True) -> None:
        """Mark a node unhealthy, so that its group replaces it. No attempt of this run uses it again.

        `is_host_fault`: the host of the node may be the cause, which the history of replaced nodes records.
        """
        control = self._state.control
        self._state.update_control(
            unhealthy_nodes=(*control.unhealthy_nodes, node),
            healthy_nodes=tuple(other for other in control.healthy_nodes if other != node),
            repairs={other: repair for other, repair in control.repairs.items() if other != node},
        )
        self._mark(node)
        if is_host_fault:
            self._history.add(node, reason)

    def mark_unhealthy_nodes(self) -> None:
        """Repeat for members of the groups what failed, or what a restart of the controller interrupted."""
        for node in self._groups.healthy_members(self._state.control.unhealthy_nodes):
            self._mark(node)

    def _mark(self, node: str) -> None:
        try:
            self._groups.mark_unhealthy(node)
        except (BotoCoreError, ClientError) as error:
            LOG.warning("%s was not marked unhealthy: %s", node, error)

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
