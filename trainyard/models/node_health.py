"""Health of a node while it runs, as every event of its agent carries it. `trainyard/node/health/` measures it."""

from collections.abc import Iterable
from typing import Literal, get_args

from pydantic import Field

from trainyard.base import StrictModel

HealthAction = Literal["none", "warn", "reset", "reboot", "replace"]
"""What a finding calls for, from nothing to another node. `reset`: of the node's GPUs."""
ACTIONS: tuple[HealthAction, ...] = get_args(HealthAction)  # in ascending order
# Together they keep a snapshot below 2 KiB of JSON.
MAX_FINDINGS = 6
MAX_TEXT = 160


class HealthFinding(StrictModel):
    """One fault of a node, or one sign of it."""

    rule: str = Field(description="Name of the rule, a row of the table in docs/node-health.md.")
    action: HealthAction = Field(description="Action of that rule.")
    device: str | None = Field(description="Device, such as `GPU 3`, `rdmap0s6` or `/`; null: the node.")
    text: str = Field(max_length=MAX_TEXT, description="Fault in one sentence, with the newest measured value.")
    time: float = Field(description="Unix time at which it was first seen, seconds.")
    count: int = Field(1, ge=1, description="Number of its events in this boot; 1 for a condition that holds.")

    def describe(self, node: str) -> str:
        """Return the fault with its place, rule and action. `node`: EC2 instance id."""
        place = f"{self.device} of {node}" if self.device else node
        return f"{place}: {self.text} ({self.rule}: {self.action})"


class NodeHealth(StrictModel):
    """The findings of a node, the most severe first: at most MAX_FINDINGS."""

    findings: tuple[HealthFinding, ...] = Field((), description="Findings of this boot that are not repaired.")

    @property
    def worst_action(self) -> HealthAction:
        """The most severe action of the findings; `none` without findings."""
        return max((finding.action for finding in self.findings), key=ACTIONS.index, default="none")

    def merged(self, newer: Iterable[HealthFinding]) -> "NodeHealth":
        """Return these and newer findings. Of one rule and device the newer text remains, with the earlier time."""
        findings = {(finding.rule, finding.device): finding for finding in self.findings}
        for finding in newer:
            known = findings.get((finding.rule, finding.device), finding)
            first = min(known.time, finding.time)
            findings[finding.rule, finding.device] = finding.model_copy(update={"time": first})
        ordered = sorted(findings.values(), key=lambda finding: (-ACTIONS.index(finding.action), finding.time))
        return NodeHealth(findings=tuple(ordered[:MAX_FINDINGS]))
