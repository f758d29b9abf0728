"""The rehearsal's report: `build/rehearsal/<stack>/report.json`."""

from typing import Literal

from pydantic import Field

from trainyard.base import StrictModel
from trainyard.models.saved import SavedItem

EngineName = Literal["mocks", "pulumi", "pulumi-aws"]
BackendName = Literal["process", "nspawn"]
CapacityRequestKind = Literal["launch", "reservation"]
PurchaseOption = Literal["on-demand", "spot", "capacity-block", "interruptible-capacity-reservation"]


class NotRehearsed(StrictModel):
    """A part of the real cluster that the rehearsal does not run."""

    subject: str = Field(description="The part that does not run.")
    reason: str = Field(description="Why it cannot run on this machine.")


class Substitution(StrictModel):
    """A part of the real cluster that the rehearsal replaces so that it fits this machine."""

    original: str = Field(description="The part of the real cluster.")
    replacement: str = Field(description="Its replacement in the rehearsal.")
    reason: str = Field(description="Why it is replaced.")


class LeakedResource(StrictModel):
    """A resource that exists after destroy, did not exist before, and is not retained on purpose."""

    service: str = Field(description="AWS service, such as ec2.")
    kind: str = Field(description="Kind of resource, such as volume.")
    id: str = Field(description="Resource id.")


class CapacityAttempt(StrictModel):
    """Requests for capacity with the same result: launches of instances, or creations of a reservation."""

    kind: CapacityRequestKind = Field(description="Whether instances were launched or reserved.")
    type: str = Field(description="EC2 instance type.")
    zone: str = Field(description="Availability Zone.")
    requested: int = Field(gt=0, description="Requested instances.")
    granted: int = Field(ge=0, description="Launched or reserved instances.")
    error_code: str | None = Field(description="AWS's error code when fewer are granted than requested.")
    times: int = Field(gt=0, description="Number of consecutive requests with this result.")


class Billed(StrictModel):
    """Billed time of all instances of one type, Availability Zone and purchase option."""

    type: str = Field(description="EC2 instance type.")
    zone: str = Field(description="Availability Zone.")
    purchase_option: PurchaseOption = Field(
        description="Purchase option. A Capacity Block is paid in advance as a whole, not by its instance-seconds."
    )
    instances: int = Field(gt=0, description="Number of instances launched or reserved.")
    seconds: float = Field(
        gt=0,
        description="Instance-seconds from launch to termination, at least 60 per instance; unused, of a reservation.",
    )


class FaultInjection(StrictModel):
    """A fault that was injected while the job ran."""

    fault: str = Field(description="The fault, in the syntax of --fault.")
    time: float = Field(description="Unix time of the injection, seconds.")
    nodes: tuple[str, ...] = Field(description="Instances that it affects; empty for a fault of the account.")
    checkpoint: str | None = Field(description="Newest complete checkpoint at that time; null without one.")


class Recovery(StrictModel):
    """Recovery from one fault. Seconds count from the injection; null: the fault did not end the attempt."""

    fault: str = Field(description="The fault, in the syntax of --fault.")
    kind: str = Field(description="The fault without place and time.")
    time: float = Field(description="Unix time of the injection, seconds.")
    nodes: tuple[str, ...] = Field(description="Instances that it affected; empty for a fault of the account.")
    attempt: int | None = Field(description="Attempt that it ended; null: the job continued.")
    detected_seconds: float | None = Field(None, description="Seconds to the decision of the controller.")
    restarted_seconds: float | None = Field(None, description="Seconds to the start of all ranks of the next attempt.")
    next_step_seconds: float | None = Field(None, description="Seconds to the end of the first step afterwards.")
    caught_up_seconds: float | None = Field(None, description="Seconds until the last step before it was done again.")
    repeated_steps: int = Field(0, ge=0, description="Steps that were done before it and again after it.")
    lost_saved_steps: int = Field(0, ge=0, description="Of these, steps that the newest checkpoint at that time had.")
    longest_step_seconds: float | None = Field(
        None, description="Longest time between two steps after it, if the job continued."
    )


class Report(StrictModel):
    """The result of one rehearsal, from the preview to the audit after destroy."""

    ok: bool = Field(description="Whether the rehearsal had no errors.")
    errors: tuple[str, ...] = Field(description="Error messages.")
    stack: str = Field(description="Pulumi stack name.")
    backend: BackendName = Field(description="How the nodes ran: as process trees or as systemd-nspawn containers.")
    engine: EngineName = Field(description="What ran the Pulumi program.")
    run: str | None = Field(description="Run id; null if no run started.")
    nodes: int = Field(ge=0, description="Number of worker nodes that ran.")
    processes_per_node: int = Field(ge=0, description="Training processes on each worker node.")
    resources_created: int = Field(ge=0, description="AWS resources that the Pulumi program created.")
    resources_deleted: int = Field(ge=0, description="Of these, AWS resources that destroy deleted.")
    retained: tuple[str, ...] = Field(description="Resources that destroy keeps on purpose (retain_on_delete).")
    images: tuple[str, ...] = Field((), description="Baked AMIs of the stack and their snapshots; destroy keeps them.")
    leaked: tuple[LeakedResource, ...] = Field(description="Resources left in the account by mistake.")
    capacity_attempts: tuple[CapacityAttempt, ...] = Field(
        (), description="Requests for instances and reservations, granted or not, in order."
    )
    billed: tuple[Billed, ...] = Field(description="Billed time of the launched instances, by instance type and zone.")
    unused_reservations: tuple[Billed, ...] = Field(
        (), description="Billed time of capacity reservations that no instance used, by instance type and zone."
    )
    faults: tuple[str, ...] = Field(description="Injected faults, in the syntax of --fault.")
    faults_without_effect: tuple[str, ...] = Field(
        (), description="Faults of --fault of which no call or instance was affected; limits are not among them."
    )
    injections: tuple[FaultInjection, ...] = Field((), description="Faults that were injected while the job ran.")
    recoveries: tuple[Recovery, ...] = Field((), description="Recovery from each of these faults.")
    replacements: int = Field(0, ge=0, description="Worker nodes that were launched after the first step.")
    phases: dict[str, float] = Field(
        description="Seconds per phase; phases do not overlap and add up to the total time."
    )
    first_loss: float | None = Field(description="Loss in the first metric line of the run.")
    last_loss: float | None = Field(description="Loss in the last metric line of the run.")
    steps: int | None = Field(description="Step number of the last metric line.")
    checkpoints: tuple[SavedItem, ...] = Field(
        description="Checkpoints, the newest last; those of the built-in trainer only if they are complete."
    )
    checkpoints_loaded: bool = Field(
        description="Whether each checkpoint was loaded once in a new process; not those of a custom job."
    )
    results: tuple[SavedItem, ...] = Field(description="Results, in the order of their names.")
    results_uri: str | None = Field(description="S3 URI of the results of the run.")
    objects: dict[str, int] = Field(description="Number of S3 objects of the run, by kind.")
    substitutions: tuple[Substitution, ...] = Field(
        description="Parts of the real cluster that the rehearsal replaces."
    )
    not_rehearsed: tuple[NotRehearsed, ...] = Field(description="Parts of the real cluster that do not run.")
