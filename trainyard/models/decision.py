"""Decisions of the controller on attempts that have failed, and the evidence for them."""

from typing import Literal

from pydantic import Field

from trainyard.base import StrictModel
from trainyard.models.events import RankFailure
from trainyard.quantity import quantity

NodeAction = Literal["none", "reset", "reboot", "replace"]
"""What the controller does with a node before the next attempt: nothing, reset its GPUs, reboot or replace it."""


class Evidence(StrictModel):
    """One observation that the controller had when it decided."""

    kind: Literal["departed", "rebooted", "unresponsive", "hardware", "slow", "rank", "peer", "repeated"] = Field(
        description="departed: the node left its group. rebooted: the node rebooted in the attempt. unresponsive: no "
        "heartbeats and a second sign. hardware: a finding of the node's health monitor. slow: a rank is slower than "
        "the others. rank: a rank failed by its own cause. peer: a rank failed because others did. repeated: earlier "
        "attempts failed in the same way."
    )
    node: str | None = Field(description="EC2 instance id; null: all nodes.")
    text: str = Field(description="The observation, in one sentence.")


class AttemptStart(StrictModel):
    """Start of one attempt: `attempts/<attempt>.json`."""

    attempt: int = Field(gt=0, description="Number of the attempt.")
    time: float = Field(description="Unix time, seconds.")
    nodes: tuple[str, ...] = Field(description="Its instances, in the order of their node ranks.")
    run_nodes: int = Field(
        gt=0, description="Number of nodes of the run. The attempt has fewer if the job continues on fewer nodes."
    )

    def describe(self, previous: "AttemptStart | None", first_step: int | None) -> str:
        """Return the start in one sentence.

        `previous`: the start of the attempt before, if any. `first_step`: first step that the attempt completed; None
        if it has completed none.
        """
        of_all = f"{len(self.nodes)} of " if len(self.nodes) < self.run_nodes else ""
        parts = [f"attempt {self.attempt} started on {of_all}{quantity(self.run_nodes, 'node')}"]
        if previous is None:
            parts.append(", ".join(self.nodes))
        else:
            parts += [f"without {node}" for node in previous.nodes if node not in self.nodes]
            parts += [f"with {node}" for node in self.nodes if node not in previous.nodes]
            if set(self.nodes) == set(previous.nodes) and self.nodes != previous.nodes:
                parts.append("the nodes run other ranks")
        if first_step is not None:
            parts.append(f"its first step was {first_step}")
        return "; ".join(parts)


class AttemptDecision(StrictModel):
    """Decision on one attempt that failed or lost a node: `decisions/<attempt>.json`."""

    attempt: int = Field(gt=0, description="Number of the attempt.")
    time: float = Field(description="Unix time of the decision, seconds.")
    nodes: tuple[str, ...] = Field(description="Instances of the attempt, in the order of their node ranks.")
    last_step: int = Field(0, ge=0, description="Last step that a node reported in the attempt; 0 if none did.")
    cause: Literal["node", "job", "outage", "unknown"] = Field(
        description="node: evidence places the fault on nodes. job: a rank failed by its own cause. outage: a service "
        "did not respond before the ranks started. unknown: no rank reported a cause."
    )
    retry_seconds: float = Field(0.0, ge=0, description="Seconds until the next attempt may start.")
    actions: dict[str, NodeAction] = Field(default_factory=dict, description="Instance -> action, if it needs any.")
    evidence: tuple[Evidence, ...] = Field(description="The observations.")
    failed_node: str | None = Field(None, description="Instance of the rank that failed first by its own cause.")
    failure: RankFailure | None = Field(None, description="Failure of that rank.")
    failing_nodes: tuple[str, ...] = Field(
        (), description="Instances on which ranks failed in the same way as that rank, in this attempt."
    )
    attempts_without_progress: int = Field(
        ge=0,
        description="Consecutive failed attempts without a new checkpoint or step up to here, without faults of nodes.",
    )
    checks_nodes: bool = Field(description="Whether the nodes must pass a health check before the next attempt.")
    swaps_node: str | None = Field(
        None, description="Instance that changes its node rank with another node, so that other ranks run on it."
    )
    end_reason: str | None = Field(None, description="Why the run ends; null: another attempt follows.")

    def summary(self) -> str:
        """Return cause and actions in one sentence."""
        if self.end_reason is not None:
            return self.end_reason
        parts = [f"{node}: {action}" for node, action in sorted(self.actions.items()) if action != "none"]
        if self.checks_nodes:
            parts.append("health check of the nodes")
        if self.swaps_node is not None:
            parts.append(f"{self.swaps_node} runs other ranks")
        where = self.failure.describe(self.failed_node) if self.failure else ""
        cause = {
            "node": "fault of a node, which does not count against the job",
            "job": f"{where}: {self.failure.message if self.failure else ''}",
            "outage": f"{where}: a service did not respond: {self.failure.message if self.failure else ''}",
            "unknown": "no rank reported a cause",
        }[self.cause]
        return f"{cause}; next: {', '.join([*parts, 'another attempt'])}"
