"""A run's own records in S3: what was launched, what the controller orders, how it ended."""

from typing import Literal

from pydantic import Field

from trainyard.base import Contract
from trainyard.models.events import RankFailure
from trainyard.models.manifest import Job, Limits


class RunRecord(Contract):
    """`run.json`: made by the launch; a later one may change size and deadlines. A copy in the staging bucket names the
    current run."""

    run: str = Field(pattern="^[a-z0-9][a-z0-9-]{0,62}$", description="Run id.")
    created: float = Field(description="Unix time of the launch, seconds.")
    deadline: float = Field(description="Unix time at which the workers end in any case, seconds.")
    manifest: str = Field(
        pattern="^[0-9a-f]{64}$",
        description="What it was launched from: SHA-256 of the manifest but for sizes and deadlines.",
    )
    nodes: int = Field(gt=0, description="Nodes of the run, in all worker groups together.")
    processes_per_node: int = Field(gt=0, description="Processes on each node.")
    job: Job = Field(description="The job as it was launched.")
    limits: Limits = Field(description="Deadlines of the run.")

    def lease_end(self, now: float) -> float:
        """When a lease that is put or moved at `now` ends, both Unix time: never past the run's own deadline."""
        return min(now + self.limits.lease_minutes * 60, self.deadline)

    @property
    def cut_short(self) -> bool:
        """Whether the run's capacity ends before its time limit is over."""
        return self.deadline < self.created + self.limits.time_limit_minutes * 60


def deadline_of(created: float, limits: Limits, ends: float | None) -> float:
    """When a run that was launched at `created` ends in any case: by its time limit, or with its capacity."""
    limit = created + limits.time_limit_minutes * 60
    return limit if ends is None else min(limit, ends)


class LostAttempt(Contract):
    """An attempt that did not end well, as far as it decides whether to go on."""

    attempt: int = Field(gt=0, description="Number of the attempt.")
    checkpoints: tuple[str, ...] = Field(description="Complete checkpoints at its end.")
    culprit: str | None = Field(description="Instance of the rank that failed first; none where no rank said why.")
    failure: RankFailure | None = Field(description="That rank's failure.")
    in_vain: int = Field(ge=0, description="Attempts in a row, this one included, that failed and left no checkpoint.")


class Check(Contract):
    """A verification of nodes before an attempt takes them in. Its rendezvous id is `<run>-check-<number>`."""

    number: int = Field(gt=0, description="Counts the run's checks: attempts are the job's own.")
    nodes: tuple[str, ...] = Field(min_length=1, description="Instances that are checked.")
    ordered: float = Field(description="Unix time of the order, seconds.")


class Control(Contract):
    """`control.json`: what the controller orders, and what it must still know when it is started again."""

    attempt: int = Field(0, ge=0, description="Current attempt; 0 while nodes gather.")
    nodes: tuple[str, ...] = Field((), description="Instances of the attempt, rank order.")
    stop: bool = Field(False, description="Agents end their workers and start no more.")
    started: bool = Field(False, description="All workers of some attempt were up.")
    waiting_since: float | None = Field(
        None, description="Unix time since which the attempt is over and the next one waits for nodes; none: it runs."
    )
    save: bool = Field(False, description="Agents ask ranks that still run for a checkpoint before they end them.")
    lost: LostAttempt | None = Field(None, description="The last attempt that was lost.")
    check: Check | None = Field(None, description="The check that nodes are to run now.")
    checks: int = Field(0, ge=0, description="Checks ordered so far.")
    verified: tuple[str, ...] = Field((), description="Instances that a check has found healthy.")
    unhealthy: tuple[str, ...] = Field((), description="Instances marked so in their group: no attempt takes them in.")


class Outcome(Contract):
    """`outcome.json`: written once, when the run is over."""

    state: Literal["succeeded", "failed", "stopped"] = Field(description="How it ended.")
    reason: str = Field(description="Why, in one sentence.")
    attempts: int = Field(ge=0, description="Attempts made.")
    ended: float = Field(description="Unix time, seconds.")
    culprit: str | None = Field(None, description="Instance of the rank that failed for good.")
    failure: RankFailure | None = Field(None, description="That rank's failure.")


class LaunchResult(Contract):
    """The launch's last line on stdout, which Pulumi keeps as an output."""

    run: str = Field(description="Run id.")
    nodes: tuple[str, ...] = Field(description="Instance ids.")
    data_uri: str = Field(description="Dataset of the run.")
    run_uri: str = Field(description="S3 URI of all that the run leaves.")
    phases: dict[str, float] = Field(description="Phase of the launch -> seconds.")
