"""Events that nodes report: one JSON object a line, in numbered chunks in S3."""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from trainyard.base import StrictModel
from trainyard.models.health_check import HealthCheckDecision, NodeFault, NodeMeasurements, NodeResult
from trainyard.models.node_health import NodeHealth

NodeRole = Literal["head", "worker", "builder"]
"""A builder belongs to no run: it configures itself as a worker does, and an image is made of its disk."""


class _Event(StrictModel):
    time: float = Field(description="Unix time, seconds.")
    instance: str = Field(description="EC2 instance id.")
    role: NodeRole = Field(description="Role of the node.")
    boot: str = Field(description="Number of this boot of the instance, from 0001.")
    sequence: int = Field(
        0,
        ge=0,
        description="Nanoseconds since the boot: each event of one boot has a higher number, also if the clock is set "
        "back; 0: not known.",
    )


class TaskEvent(_Event):
    """One Ansible task has ended on this node."""

    kind: Literal["task"] = "task"
    ansible_role: str = Field(description="Ansible role; empty for a task outside roles.")
    task: str = Field(description="Name of the task.")
    status: Literal["ok", "changed", "skipped", "failed"] = Field(description="Result of the task.")
    seconds: float = Field(ge=0, description="Duration, seconds.")
    message: str = Field("", description="Error message of a failed task, or the message of a debug task.")


class PlaybookEvent(_Event):
    """The node playbook has started or ended on this node."""

    kind: Literal["playbook"] = "playbook"
    status: Literal["started", "ok", "failed", "rebooting", "deferred"] = Field(
        description="State of the playbook. `deferred`: it needs a reboot, and waits for the end of the job."
    )
    seconds: float = Field(0.0, ge=0, description="Duration, seconds.")
    changed: int = Field(0, ge=0, description="Number of tasks that changed the node.")
    message: str = Field("", description="Reason of the failure, or of the reboot.")
    is_permanent: bool = Field(False, description="Whether the playbook would fail again, so that no retry is awaited.")


class ServiceEvent(_Event):
    """A service of the head has started."""

    kind: Literal["service"] = "service"
    service: Literal["controller"] = Field(description="Name of the service.")
    address: str = Field(description="Private address of the node.")


class RankFailure(StrictModel):
    """Failure of one rank in an attempt, or of a node before its ranks have started."""

    rank: int = Field(ge=0, description="Global rank; the first of the node for a failure before its ranks started.")
    local_rank: int | None = Field(
        ge=0, description="Rank within its node; null: the node failed before its ranks started."
    )
    time: float = Field(description="Unix time of the failure, seconds.")
    exitcode: int = Field(description="Exit code; negative for a signal.")
    message: str = Field(description="Exception with its text, or the signal.")
    traceback: str = Field(description="Traceback, or what the message omits; empty without either.")
    is_permanent: bool = Field(
        False, description="Whether another attempt fails in the same way, such as for a package that does not exist."
    )
    is_outage: bool = Field(
        False, description="Whether a service did not respond, such as S3, before the ranks of the node started."
    )

    def describe(self, node: str | None) -> str:
        """Return where the failure was, such as `rank 5 (local rank 1 of i-1)`. `node`: its EC2 instance id."""
        if self.local_rank is None:
            return f"node {node}"
        return f"rank {self.rank} (local rank {self.local_rank} of {node})"


class AgentEvent(_Event):
    """The node's job agent has changed its state."""

    kind: Literal["agent"] = "agent"
    run: str = Field(description="Run id.")
    attempt: int = Field(ge=0, description="Attempt to which the state belongs; 0 before the first.")
    state: Literal[
        "ready", "workers_up", "rank_failed", "workers_done", "workers_failed", "repaired", "stopped", "drained"
    ] = Field(
        description="State of the agent. `rank_failed`: a rank has failed, and the other ranks of the node are ended. "
        "`repaired`: the GPUs were reset after that attempt. `stopped`: the run has ended, and no process of its job "
        "runs."
    )
    address: str = Field(description="Private address of the node.")
    failures: tuple[RankFailure, ...] = Field((), description="Failures of this node's ranks.")
    health: NodeHealth = Field(NodeHealth(), description="Health of the node at that time.")


class ActivityEvent(_Event):
    """Whether the job computes on a node. An idle node reports every minute, a busy node once after it was idle."""

    kind: Literal["activity"] = "activity"
    run: str = Field(description="Run id.")
    attempt: int = Field(gt=0, description="Attempt that was sampled.")
    idle_seconds: float | None = Field(
        ge=0, description="Seconds for which every sample was idle; null: the job computes."
    )
    resource: Literal["gpu", "cpu"] = Field(description="Resource that was sampled.")
    percent: float = Field(
        ge=0, description="Utilization in the last sample: of the busiest GPU, or of one core per process."
    )


class HealthCheckEvent(_Event):
    """Measurements of one node in a health check: reported when it passes, fails or reaches its deadline."""

    kind: Literal["health_check"] = "health_check"
    run: str = Field(description="Run id.")
    number: int = Field(gt=0, description="Number of the health check.")
    group: str = Field(description="Worker group of the node.")
    measurements: NodeMeasurements = Field(description="Values that the node measured before the health check ended.")
    faults: tuple[NodeFault, ...] = Field((), description="Faults of this node that stopped the health check.")
    missing_peers: tuple[str, ...] = Field((), description="Nodes that did not arrive while this node waited.")
    incomplete_stage: str | None = Field(None, description="Stage over all nodes that no node completed.")

    @property
    def node_result(self) -> NodeResult:
        """The result of the node, as it reports it."""
        return NodeResult(
            node=self.instance,
            group=self.group,
            measurements=self.measurements,
            faults=self.faults,
            missing_peers=self.missing_peers,
            incomplete_stage=self.incomplete_stage,
        )


class HealthCheckResultEvent(_Event):
    """Decision of the controller on a health check; `health_check.json` has all details."""

    kind: Literal["health_check_result"] = "health_check_result"
    run: str = Field(description="Run id.")
    number: int = Field(gt=0, description="Number of the health check.")
    decision: HealthCheckDecision = Field(description="Decision of the controller.")
    text: str = Field(description="Reason, in one sentence.")


NodeEvent = Annotated[
    TaskEvent | PlaybookEvent | ServiceEvent | AgentEvent | ActivityEvent | HealthCheckEvent | HealthCheckResultEvent,
    Field(discriminator="kind"),
]
NODE_EVENT: TypeAdapter[NodeEvent] = TypeAdapter(NodeEvent)
