"""Records of invented runs, for tests of the report of a chaos run. Times are seconds since 0."""

from typing import Any

from rehearsal.aws.control_models import InstanceRecord
from rehearsal.run_records import RunRecords
from tests.metrics import metric
from trainyard.aws import tags
from trainyard.models.decision import AttemptDecision, Evidence, NodeAction
from trainyard.models.events import AgentEvent
from trainyard.models.metrics import MetricLine
from trainyard.models.report import FaultInjection


def lines(attempt: int, first: int, last: int, start: float) -> list[MetricLine]:
    """Return the lines of an attempt that begins its first step at `start`."""
    return [metric(step, attempt=attempt, time=start + step - first + 1) for step in range(first, last + 1)]


def agent(instance: str, state: Any, time: float, attempt: int = 1) -> AgentEvent:
    """Return an event of an agent."""
    place: dict[str, Any] = {
        "instance": instance,
        "role": "worker",
        "boot": "0001",
        "run": "run-1",
        "address": "10.0.0.1",
    }
    return AgentEvent(time=time, state=state, attempt=attempt, **place)


def decision(attempt: int, time: float, evidence: tuple[Evidence, ...] = (), **actions: NodeAction) -> AttemptDecision:
    """Return the decision on an attempt. `actions`: node -> action."""
    return AttemptDecision(
        attempt=attempt,
        time=time,
        nodes=("a", "b"),
        cause="unknown",
        actions=actions,
        evidence=evidence,
        attempts_without_progress=0,
        checks_nodes=False,
    )


def worker(instance: str, launch: float, end: float | None, **changes: Any) -> InstanceRecord:
    """Return a worker that existed from launch to end."""
    fields: dict[str, Any] = {
        "id": instance,
        "region": "us-east-1",
        "state": "terminated",
        "private_ip": "10.0.0.1",
        "instance_type": "c7i.xlarge",
        "subnet": "subnet-1",
        "zone": "us-east-1a",
        "image": "ami-1",
        "user_data": "",
        "role_name": None,
        "tags": {tags.ROLE: "worker"},
        "launch_time": launch,
        "terminated_time": end,
        "autoscaling_group": "workers",
        "lifecycle_state": "Terminated",
    }
    return InstanceRecord.model_validate({**fields, **changes})


def injection(fault: str, time: float, *nodes: str, checkpoint: str | None = None) -> FaultInjection:
    """Return the injection of a fault."""
    return FaultInjection(fault=fault, time=time, nodes=nodes, checkpoint=checkpoint)


def interrupted_run() -> RunRecords:
    """Return a run of two nodes and 20 steps of 1 s, with an interruption after step 10 and a checkpoint of step 8.

    Launch at 0, ranks up at 20, first step from 30 to 31, step 10 until 40. Decision at 45, ranks up at 50, step 9 from
    55 to 56, step 20 until 67, termination at 70.
    """
    return RunRecords(
        lines=(*lines(1, 1, 10, 30.0), *lines(2, 9, 20, 55.0)),
        events=(
            *(agent(node, "ready", 10.0, attempt=0) for node in ("a", "b")),
            *(agent(node, "workers_up", 20.0) for node in ("a", "b")),
            *(agent(node, "workers_up", 50.0, attempt=2) for node in ("a", "b")),
        ),
        decisions=(decision(1, 45.0),),
        instances=(worker("a", 0.0, 70.0), worker("b", 0.0, 70.0)),
    )
