"""What a node tells: one JSON object a line, in numbered chunks in S3."""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from trainyard.base import Contract
from trainyard.models.health_check import CheckedNode, Fault, Measured, Verdict

NodeRole = Literal["head", "worker", "builder"]
"""A builder is no node of a run: it configures itself as a worker does, and becomes their image."""


class _Event(Contract):
    time: float = Field(description="Unix time, seconds.")
    instance: str = Field(description="EC2 instance id.")
    role: NodeRole = Field(description="What the node is.")
    boot: str = Field(description="Number of this boot of the instance, from 0001.")


class TaskEvent(_Event):
    """The end of one Ansible task on this node."""

    kind: Literal["task"] = "task"
    ansible_role: str = Field(description="Ansible role, empty outside one.")
    task: str = Field(description="The task's name.")
    status: Literal["ok", "changed", "skipped", "failed"] = Field(description="How it ended.")
    seconds: float = Field(ge=0, description="Duration, seconds.")
    message: str = Field("", description="A failed task's own message, or what a debug task says.")


class PlayEvent(_Event):
    """A play began or ended on this node."""

    kind: Literal["play"] = "play"
    status: Literal["started", "ok", "failed", "rebooting", "deferred"] = Field(
        description="What the play came to. `deferred`: it waits for a reboot, for which a job is not ended."
    )
    seconds: float = Field(0.0, ge=0, description="Duration, seconds.")
    changed: int = Field(0, ge=0, description="Tasks that changed something.")
    message: str = Field("", description="Why it failed, or why the node reboots.")


class ServiceEvent(_Event):
    """A service of the head is up."""

    kind: Literal["service"] = "service"
    service: Literal["rendezvous", "controller"] = Field(description="Which one.")
    address: str = Field(description="Address it listens on, or the node's own.")


class RankFailure(Contract):
    """How one rank of an attempt failed."""

    rank: int = Field(ge=0, description="Global rank.")
    time: float = Field(description="Unix time at which torchrun saw it end, seconds.")
    exitcode: int = Field(description="Exit code; negative for a signal.")
    message: str = Field(description="Last line of the traceback, or the signal.")
    traceback: str = Field(description="Tail of that rank's stderr.")


class AgentEvent(_Event):
    """A state of the node's job agent."""

    kind: Literal["agent"] = "agent"
    run: str = Field(description="Run id.")
    attempt: int = Field(ge=0, description="Attempt the state belongs to; 0 before the first.")
    state: Literal["ready", "workers_up", "workers_done", "workers_failed", "left"] = Field(description="The state.")
    address: str = Field(description="Private address that peers reach.")
    failures: tuple[RankFailure, ...] = Field((), description="Failures of this node's ranks.")


class ActivityEvent(_Event):
    """Whether a node's job works. A job at work says so once, after it was idle; an idle one says it every minute."""

    kind: Literal["activity"] = "activity"
    run: str = Field(description="Run id.")
    attempt: int = Field(gt=0, description="Attempt that was looked at.")
    idle_since: float | None = Field(description="Unix time since which no look saw work; none: it works.")
    measured: Literal["gpu", "cpu"] = Field(description="What was looked at.")
    percent: float = Field(ge=0, description="Its use at the last look: of the busiest GPU, or of a core a process.")


class VerificationEvent(_Event):
    """What a node measured in a check before the job, at its end: come to well, failed, or cut at the deadline."""

    kind: Literal["verification"] = "verification"
    run: str = Field(description="Run id.")
    check: int = Field(gt=0, description="Number of the check.")
    group: str = Field(description="Worker group of the node.")
    measured: Measured = Field(description="What it found until then.")
    faults: tuple[Fault, ...] = Field((), description="Faults of its own that kept it from the end.")
    absent: tuple[str, ...] = Field((), description="Peers that it waited for in vain.")
    stuck: str | None = Field(None, description="What did not end on all nodes together, so that nobody came further.")

    @property
    def checked(self) -> CheckedNode:
        """The node as its own word has it."""
        return CheckedNode(
            node=self.instance,
            group=self.group,
            measured=self.measured,
            faults=self.faults,
            absent=self.absent,
            stuck=self.stuck,
        )


class VerdictEvent(_Event):
    """What the controller concludes from a check, for who watches; `verification.json` has all of it."""

    kind: Literal["verdict"] = "verdict"
    run: str = Field(description="Run id.")
    check: int = Field(gt=0, description="Number of the check.")
    verdict: Verdict = Field(description="What follows.")
    text: str = Field(description="Why, in one sentence.")


NodeEvent = Annotated[
    TaskEvent | PlayEvent | ServiceEvent | AgentEvent | ActivityEvent | VerificationEvent | VerdictEvent,
    Field(discriminator="kind"),
]
NODE_EVENT: TypeAdapter[NodeEvent] = TypeAdapter(NodeEvent)
