"""The controller's part of the checks before a job: what was ordered, what nodes said, what was concluded, in S3."""

from collections.abc import Collection

from trainyard.aws.s3 import Bucket
from trainyard.models.events import VerdictEvent, VerificationEvent
from trainyard.models.health_check import Measured, Verification
from trainyard.models.layout import RunLayout, chunk_key, chunk_prefix
from trainyard.models.manifest import Manifest
from trainyard.models.run import Check, RunRecord
from trainyard.node.controller.health_check_result import decide, judge
from trainyard.node.identity import Node

# Beyond a check's own time: agents see it, end what hangs and reach S3.
REPORT_SECONDS = 30.0
# After the first node's fault: the others can't come through any more, and may have faults of their own to tell.
FAULT_SECONDS = 10.0


class Checks:
    """Those of one run."""

    def __init__(self, node: Node, manifest: Manifest, run: str, data: Bucket) -> None:
        self._node, self._manifest, self._data, self._layout = node, manifest, data, RunLayout(run)
        self._told: dict[int, dict[str, VerificationEvent]] = {}
        self.last = self._find(self._layout.verification)
        self._healthy: dict[str, Measured] = {}
        self._learn(self.last)

    def _find(self, key: str) -> Verification | None:
        found = self._data.find(key)
        return None if found is None else Verification.model_validate_json(found)

    def _learn(self, check: Verification | None) -> None:
        if check is not None and check.verdict == "passed":
            self._healthy.update({one.node: one.measured for one in check.nodes if one.measured})

    def hear(self, event: VerificationEvent) -> None:
        self._told.setdefault(event.check, {})[event.instance] = event

    def concluded(
        self, check: Check, run: RunRecord, members: Collection[str], replaced: int, now: float
    ) -> Verification | None:
        """What follows from a check that is over: all have reported, or their time is up. Kept in S3."""
        told, minutes = self._told.get(check.number, {}), run.limits.verify_minutes
        overdue = now >= check.ordered + minutes * 60 + REPORT_SECONDS
        cut = any(event.faults and now >= event.time + FAULT_SECONDS for event in told.values())
        if not (set(check.nodes) <= told.keys() or overdue or cut):
            return None
        before = self._find(self._layout.check(check.number - 1))
        known = {node: seen for node, seen in self._healthy.items() if node in members and node not in check.nodes}
        processes, allowed = run.processes_per_node, minutes if overdue else None
        seen = judge(check.nodes, told, self._manifest, processes, known, allowed)
        failed_before = before if before is not None and before.verdict != "passed" else None
        decision = decide(seen, failed_before, replaced, run.nodes)
        self.last = Verification(
            number=check.number,
            ended=now,
            seconds=max(now - check.ordered, 0.0),
            nodes=seen.nodes,
            faults=seen.faults,
            notes=decision.notes,
            verdict=decision.verdict,
            reason=decision.reason,
            unhealthy=decision.unhealthy,
        )
        self._learn(self.last)
        self._keep(self.last, run)
        return self.last

    def _keep(self, check: Verification, run: RunRecord) -> None:
        """Safe to repeat: a controller started again may do so."""
        content = check.model_dump_json(indent=1).encode()
        for key in (self._layout.check(check.number), self._layout.verification):
            self._data.write(key, content)
        told = {"run": run.run, "check": check.number, "verdict": check.verdict, "text": check.reason}
        event = VerdictEvent.model_validate({**self._node.stamp(check.ended), **told})
        prefix = chunk_prefix(self._layout.events, self._node.instance, self._node.boot, "verdict")
        self._data.write(chunk_key(prefix, check.number), event.model_dump_json().encode())
