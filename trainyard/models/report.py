"""The rehearsal's report: `build/rehearsal/<stack>/report.json`."""

from typing import Literal

from pydantic import Field

from trainyard.base import Contract

EngineName = Literal["mocks", "pulumi", "pulumi-aws"]
BackendName = Literal["process", "nspawn"]


class NotRehearsed(Contract):
    """Something of the real cluster that did not run here."""

    what: str = Field(description="The thing.")
    why: str = Field(description="Why it could not run.")


class Scaled(Contract):
    """A substitution made for this machine."""

    what: str = Field(description="What the real cluster uses.")
    by: str = Field(description="What stood in for it.")
    why: str = Field(description="Why.")


class LostResource(Contract):
    """Something found in the account after destroy that was not there before and should not stay."""

    service: str = Field(description="AWS service.")
    kind: str = Field(description="Kind of resource.")
    id: str = Field(description="Its id.")


class Billed(Contract):
    """What the instances of one type are billed for."""

    type: str = Field(description="EC2 instance type.")
    instances: int = Field(gt=0, description="Instances launched.")
    seconds: float = Field(gt=0, description="Their seconds from launch to termination, a minute each at least.")


class Report(Contract):
    """One rehearsal, start to destroyed."""

    ok: bool = Field(description="Whether all of it was as it should be.")
    errors: tuple[str, ...] = Field(description="What was not, one sentence each.")
    stack: str = Field(description="Pulumi stack.")
    backend: BackendName = Field(description="How nodes were booted.")
    engine: EngineName = Field(description="What ran the Pulumi program.")
    run: str | None = Field(description="Run id.")
    nodes: int = Field(ge=0, description="Worker nodes that ran.")
    processes_per_node: int = Field(ge=0, description="Processes on each node.")
    resources_created: int = Field(ge=0, description="The program's own aws resources that were made.")
    resources_deleted: int = Field(ge=0, description="Of these, how many destroy deleted.")
    retained: tuple[str, ...] = Field(description="Resources that destroy keeps on purpose.")
    images: tuple[str, ...] = Field((), description="Baked images of the stack, with their snapshots: they stay.")
    leaked: tuple[LostResource, ...] = Field(description="What stayed in the account and should not have.")
    billed: tuple[Billed, ...] = Field(description="Instances launched in this rehearsal, by instance type.")
    faults: tuple[str, ...] = Field(description="Faults injected on purpose, as --fault takes them.")
    phases: dict[str, float] = Field(description="Phase -> seconds; disjoint, their sum is the wall time.")
    first_loss: float | None = Field(description="Loss of the run's first metric line.")
    last_loss: float | None = Field(description="Loss of the run's last metric line.")
    steps: int | None = Field(description="Step of the last metric line.")
    checkpoints: tuple[str, ...] = Field(description="URIs of complete checkpoints, each loaded in a fresh process.")
    results_uri: str | None = Field(description="Where the run's results lie.")
    objects: dict[str, int] = Field(description="Kind of object under the run -> how many lie in S3.")
    scaled: tuple[Scaled, ...] = Field(description="Each substitution made for this machine.")
    not_rehearsed: tuple[NotRehearsed, ...] = Field(description="What of the real cluster did not run.")
