"""Faults of a worker node and of its agent."""

import signal
from typing import ClassVar, Literal

from pydantic import Field

from rehearsal.hypervisor.backend import Backend
from rehearsal.hypervisor.processes import command_ends_with, send_signal
from rehearsal.run_faults.job import Job, RunFault
from trainyard.aws.ec2 import terminate_instances
from trainyard.models.report import BackendName

AGENT = ("-m", "trainyard.node.agent")
# kernel.panic=10, which the node playbook sets: the kernel restarts the machine after this time.
PANIC_SECONDS = 10.0


class _NodeFault(RunFault):
    node: int = Field(ge=0, description="Worker node, in the order of node ranks.")


class AgentKill(_NodeFault):
    """A killed agent: it gets SIGKILL."""

    kind: Literal["agent-kill"] = "agent-kill"

    def inject(self, job: Job) -> tuple[str, ...] | None:
        """Kill the agent."""
        return _signal_agent(job, self.node, signal.SIGKILL)


class AgentHang(_NodeFault):
    """An agent that hangs: it gets SIGSTOP."""

    kind: Literal["agent-hang"] = "agent-hang"

    def inject(self, job: Job) -> tuple[str, ...] | None:
        """Suspend the agent."""
        return _signal_agent(job, self.node, signal.SIGSTOP)


class NodeHang(_NodeFault):
    """A node that stops: all of its processes get SIGSTOP, and its connections stay open.

    So do those of a node whose kernel hangs or that loses its power: nothing closes them (RFC 9293, 3.8.5).
    """

    kind: Literal["node-hang"] = "node-hang"

    def inject(self, job: Job) -> tuple[str, ...] | None:
        """Suspend all processes of the node."""
        instance = job.instance(self.node)
        if instance is None:
            return None
        job.hypervisor.suspend(instance)
        return (instance,)


class NodeTerminate(_NodeFault):
    """A terminated node: EC2 terminates it, as when its host fails or a person terminates it."""

    kind: Literal["node-terminate"] = "node-terminate"

    def inject(self, job: Job) -> tuple[str, ...] | None:
        """Terminate the instance."""
        instance = job.instance(self.node)
        if instance is None:
            return None
        terminate_instances(job.hypervisor.region, [instance])
        return (instance,)


class KernelPanic(_NodeFault):
    """A kernel panic: the node stops, its connections stay open, and it boots again after `kernel.panic` seconds.

    https://docs.kernel.org/admin-guide/sysctl/kernel.html#panic
    """

    kind: Literal["kernel-panic"] = "kernel-panic"

    def inject(self, job: Job) -> tuple[str, ...] | None:
        """Suspend all processes of the node, and restart it later."""
        instance = job.instance(self.node)
        if instance is None:
            return None
        job.hypervisor.suspend(instance)
        job.call_later(PANIC_SECONDS, lambda: job.hypervisor.restart(instance))
        return (instance,)


class DiskFull(_NodeFault):
    """A full disk: a file uses all of its free space for some seconds."""

    backends: ClassVar[tuple[BackendName, ...]] = ("nspawn",)
    kind: Literal["disk-full"] = "disk-full"
    seconds: float = Field(gt=0, allow_inf_nan=False, description="Seconds until the file is deleted.")

    def prepare(self, backend: Backend) -> None:
        """Let the machines have small disks."""
        backend.limit_disks()

    def inject(self, job: Job) -> tuple[str, ...] | None:
        """Fill the disk of the node."""
        instance = job.instance(self.node)
        if instance is None:
            return None
        job.hypervisor.fill_disk(instance, True)
        job.call_later(self.seconds, lambda: job.hypervisor.fill_disk(instance, False))
        return (instance,)


class BootHang(RunFault):
    """Replacements that never start: the next instances run according to EC2, but do not boot."""

    kind: Literal["boot-hang"] = "boot-hang"
    count: int = Field(default=1, ge=1, description="Number of instances.")

    def inject(self, job: Job) -> tuple[str, ...]:
        """Let the next instances hang."""
        job.hypervisor.hang_next_boots(self.count)
        return ()


def _signal_agent(job: Job, node: int, number: signal.Signals) -> tuple[str, ...] | None:
    instance = job.instance(node)
    for process in job.hypervisor.processes(instance) if instance else ():
        if instance and command_ends_with(process, *AGENT):
            send_signal(process, number)
            return (instance,)
    return None
