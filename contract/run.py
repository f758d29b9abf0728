"""A run's own records in S3: what was launched, what the controller orders, how it ended."""

from typing import Literal

from pydantic import Field

from contract.base import Contract
from contract.events import RankFailure
from contract.manifest import Job


class RunRecord(Contract):
    """`run.json`: made by the launch, never changed. A copy in the staging bucket names the current run."""

    run: str = Field(pattern="^[a-z0-9][a-z0-9-]{0,62}$", description="Run id.")
    created: float = Field(description="Unix time of the launch, seconds.")
    deadline: float = Field(description="Unix time at which the workers end in any case, seconds.")
    nodes: int = Field(gt=0, description="Nodes of the run.")
    processes_per_node: int = Field(gt=0, description="Processes on each node.")
    job: Job = Field(description="The job as it was launched.")


class Control(Contract):
    """`control.json`: what the controller orders; agents poll it."""

    attempt: int = Field(ge=0, description="Current attempt; 0 while nodes gather.")
    nodes: tuple[str, ...] = Field(description="Instances of the attempt, rank order.")
    stop: bool = Field(description="Agents end their workers and start no more.")


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
