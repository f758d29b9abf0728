"""Selects the nodes of the next attempt, replaces silent nodes, and terminates nodes that no attempt needs."""

import logging
from collections.abc import Collection

from botocore.exceptions import ClientError

from trainyard.models.node_health import HealthFinding
from trainyard.node.controller.liveness import Liveness
from trainyard.node.controller.repairs import Repairs
from trainyard.node.controller.replaced_nodes import ReplacementHistory
from trainyard.node.controller.run_state import RunState
from trainyard.node.controller.worker_groups import WorkerGroups

# A member that is silent for this long while others wait for it is replaced.
WAITING_SILENCE_SECONDS = 60.0
# A member outside the attempt whose health monitor has had a finding that needs an action for this long is replaced.
# Devices may appear some time after the boot.
FINDING_SECONDS = 120.0
LOG = logging.getLogger("controller")


class NodeSelection:
    """Selects the nodes of the next attempt among the members of the worker groups."""

    def __init__(
        self, state: RunState, groups: WorkerGroups, liveness: Liveness, repairs: Repairs, history: ReplacementHistory
    ) -> None:
        self._state, self._groups, self._liveness = state, groups, liveness
        self._repairs, self._history = repairs, history
        self._surplus_since: dict[str, float] = {}
        self._broken_since: dict[str, float] = {}  # monotonic
        self._removed: set[str] = set()

    def find_intact(self, now: float) -> set[str]:
        """Return the members that are not marked unhealthy and not in repair; they may be silent."""
        state = self._state
        return set(state.members) - set(state.control.unhealthy_nodes) - self._repairs.nodes_in_repair(now)

    def find_usable(self, now: float) -> set[str]:
        """Return the members that an attempt may use: not marked unhealthy, in repair, silent, or broken spares."""
        usable, states = self.find_intact(now), self._state.node_states
        silent = self._liveness.silent_nodes(usable & states.latest.keys()).keys()
        return usable - silent - self._find_broken(usable).keys()

    def _find_broken(self, nodes: Collection[str]) -> dict[str, list[HealthFinding]]:
        """Return node -> findings that need an action, for nodes outside the attempt. Before it, the check decides."""
        control = self._state.control
        findings = self._state.node_states.hardware_findings(nodes) if control.attempt else {}
        return {node: each for node, each in findings.items() if node not in control.nodes}

    def replace_broken(self, now: float) -> None:
        """Replace members outside the attempt that are broken, such as spares whose GPU was lost."""
        clock, broken = self._state.clock.monotonic(), self._find_broken(self.find_intact(now))
        self._broken_since = {node: self._broken_since.get(node, clock) for node in broken}
        for node, since in self._broken_since.items():
            if clock >= since + FINDING_SECONDS:
                reason = "; ".join(each.describe(node) for each in broken[node])
                LOG.warning("%s, which no attempt uses: %s: replaced", node, reason)
                self._repairs.replace(node, reason)

    def select(self, now: float, count: int) -> tuple[str, ...] | None:
        """Return `count` usable nodes; None if fewer are ready.

        The order of preference: nodes of the last attempt; nodes that are not below a network node with several
        replaced nodes; nodes that passed a health check.
        """
        control, states = self._state.control, self._state.node_states
        ready = states.ready_nodes(self.find_usable(now))  # EC2 does not describe the topology of pending instances
        preferred = (
            frozenset(control.nodes),
            self._history.find_unsuspected(ready),
            frozenset(control.healthy_nodes),
        )
        return states.select_nodes(ready, count, preferred)

    def select_smaller_size(self, now: float) -> tuple[str, ...] | None:
        """Return the nodes of the largest size with which the job can continue; None if too few nodes are ready."""
        ready = len(self._state.node_states.ready_nodes(self.find_usable(now)))
        sizes = [
            size for size in self._state.run.limits.smaller_sizes if size <= ready and size < self._state.run.nodes
        ]
        return self.select(now, max(sizes)) if sizes else None

    def replace_silent(self, now: float) -> None:
        """Replace nodes that are silent while the run waits for them, which is the second sign that they are lost.

        If all nodes are silent, the head or its network is at fault, and no node is replaced.
        """
        ready = self.find_intact(now) & self._state.node_states.latest.keys()
        silent = self._liveness.silent_nodes(ready)
        for node, seconds in sorted(silent.items()):
            if seconds >= WAITING_SILENCE_SECONDS and len(silent) < len(ready):
                reason = f"no heartbeat for {seconds:.0f} s, and the run waits for it"
                LOG.warning("%s: %s: replaced", node, reason)
                self._repairs.replace(node, reason)

    def remove_surplus(self, now: float) -> None:
        """Terminate nodes that no attempt has used within the startup timeout: their launch may have been killed."""
        state = self._state
        missing = max(0, state.run.nodes - len(state.control.nodes))  # of a job that runs on fewer nodes
        spares = state.control.find_spares(state.members, state.run.spares + missing)
        used = {*state.control.nodes, *spares, *state.control.unhealthy_nodes}
        surplus = set(state.members) - used
        self._surplus_since = {node: self._surplus_since.get(node, now) for node in surplus}
        for node, since in self._surplus_since.items():
            if now > since + state.run.limits.startup_timeout_minutes * 60 and node not in self._removed:
                LOG.warning("no attempt uses %s: it is terminated", node)
                try:
                    self._groups.remove(node)
                    self._removed.add(node)
                except ClientError as error:  # the job continues, and the next step repeats it
                    LOG.error("%s was not terminated: %s", node, error)
