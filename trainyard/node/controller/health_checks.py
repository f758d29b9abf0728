"""Health checks of one run in the controller: events of the nodes, results in S3."""

from collections.abc import Collection

from trainyard.aws.s3 import Bucket
from trainyard.clock import Clock
from trainyard.models.events import HealthCheckEvent, HealthCheckResultEvent
from trainyard.models.health_check import HealthCheckResult, NodeMeasurements
from trainyard.models.layout import RunLayout, chunk_key, chunk_prefix
from trainyard.models.manifest import Manifest
from trainyard.models.run import HealthCheckRequest, RunRecord
from trainyard.node.controller.health_check_result import decide, evaluate
from trainyard.node.identity import Node

# In addition to the timeout of a health check: agents poll, kill hung processes and write to S3.
REPORT_GRACE_SECONDS = 30.0
# After the first fault of a node: the other nodes cannot complete any more, but may report their own faults.
FAULT_GRACE_SECONDS = 10.0


class HealthChecks:
    """Health checks of one run."""

    def __init__(self, node: Node, manifest: Manifest, run: str, data: Bucket, clock: Clock) -> None:
        self._node, self._manifest, self._data, self._layout = node, manifest, data, RunLayout(run)
        self._clock = clock
        self._fault_received_at: dict[int, float] = {}
        self._events: dict[int, dict[str, HealthCheckEvent]] = {}
        self.latest = self._read(self._layout.latest_health_check)
        self._healthy: dict[str, NodeMeasurements] = {}
        self._remember_healthy(self.latest)

    def _read(self, key: str) -> HealthCheckResult | None:
        content = self._data.find(key)
        return None if content is None else HealthCheckResult.model_validate_json(content)

    def _remember_healthy(self, result: HealthCheckResult | None) -> None:
        if result is not None and result.decision == "passed":
            self._healthy.update({node.node: node.measurements for node in result.nodes if node.measurements})

    def update(self, event: HealthCheckEvent) -> None:
        """Add the event of a node."""
        self._events.setdefault(event.number, {})[event.instance] = event
        if event.faults:
            self._fault_received_at.setdefault(event.number, self._clock.monotonic())

    def conclude(
        self,
        request: HealthCheckRequest,
        run: RunRecord,
        members: Collection[str],
        now: float,
        slow_nodes: Collection[str] = (),
        *,
        during_attempt: bool = False,
    ) -> HealthCheckResult | None:
        """Return and store the result of a health check; None until it is over.

        It is over when all nodes have reported, after its timeout, or FAULT_GRACE_SECONDS after the first fault.

        `members`: instances of the worker groups. `slow_nodes`: nodes with a rank that was slower than the others.
        `during_attempt`: whether the job runs on other nodes. Earlier results count only if this was the same for them:
        spare nodes that have failed are no reason to end a run.
        """
        events, minutes = self._events.get(request.number, {}), run.limits.health_check_timeout_minutes
        overdue = now >= request.requested_at + minutes * 60 + REPORT_GRACE_SECONDS
        received_at = self._fault_received_at.get(request.number)
        has_fault = received_at is not None and self._clock.monotonic() >= received_at + FAULT_GRACE_SECONDS
        if not (set(request.nodes) <= events.keys() or overdue or has_fault):
            return None
        before = self._read_failed_before(request.number)
        failed = [result for result in before if result.during_attempt == during_attempt]
        others = {
            node: values for node, values in self._healthy.items() if node in members and node not in request.nodes
        }
        overdue_minutes = minutes if overdue else None
        evaluation = evaluate(
            request.nodes, events, self._manifest, run.processes_per_node, others, overdue_minutes, slow_nodes
        )
        replaced = sum(len(result.unhealthy_nodes) for result in failed)
        decision = decide(evaluation, failed[0] if failed else None, replaced, run.nodes)
        self.latest = HealthCheckResult(
            number=request.number,
            ended_at=now,
            seconds=max(now - request.requested_at, 0.0),
            nodes=evaluation.nodes,
            faults=evaluation.faults,
            notes=decision.notes,
            decision=decision.decision,
            reason=decision.reason,
            during_attempt=during_attempt,
            unhealthy_nodes=decision.unhealthy_nodes,
        )
        self._remember_healthy(self.latest)
        self._write(self.latest, run)
        return self.latest

    def _read_failed_before(self, number: int) -> list[HealthCheckResult]:
        """Return the results of the health checks since the last that passed, newest first."""
        failed: list[HealthCheckResult] = []
        while (result := self._read(self._layout.health_check(number - 1 - len(failed)))) is not None:
            if result.decision == "passed":
                break
            failed.append(result)
        return failed

    def _write(self, result: HealthCheckResult, run: RunRecord) -> None:
        """Write result and event to S3. Idempotent, because a restarted controller may repeat it."""
        content = result.model_dump_json(indent=1).encode()
        for key in (self._layout.health_check(result.number), self._layout.latest_health_check):
            self._data.write(key, content)
        fields = {"run": run.run, "number": result.number, "decision": result.decision, "text": result.reason}
        event = HealthCheckResultEvent.model_validate({**self._node.event_fields(result.ended_at), **fields})
        prefix = chunk_prefix(self._layout.events, self._node.instance, self._node.boot, "health-check-result")
        self._data.write(chunk_key(prefix, result.number), event.model_dump_json().encode())
