"""A change of the system time of a node."""

from typing import ClassVar, Literal

from pydantic import Field

from rehearsal.hypervisor.backend import Backend
from rehearsal.run_faults.job import Job, NodeFault
from trainyard.models.report import BackendName


class ClockStep(NodeFault):
    """A clock that steps: the system time of a node changes at once, CLOCK_MONOTONIC and CLOCK_BOOTTIME do not.

    All nodes share the kernel of this machine, so only what Python's `time.time` returns on the node changes.
    """

    backends: ClassVar[tuple[BackendName, ...]] = ("process",)
    kind: Literal["clock-step"] = "clock-step"
    seconds: float = Field(allow_inf_nan=False, description="Seconds that are added; negative: the clock is set back.")

    def prepare(self, backend: Backend) -> None:
        """Give each machine a separate clock."""
        backend.allow_clock_steps()

    def affect(self, job: Job, instance: str) -> bool:
        """Set the clock of the node."""
        job.hypervisor.step_clock(instance, self.seconds)
        return True
