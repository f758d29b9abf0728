"""Faults of a worker node and of its agent."""

import signal
from typing import ClassVar, Literal

from pydantic import Field

from rehearsal.hypervisor.backend import Backend
from rehearsal.hypervisor.processes import command_line, send_signal
from rehearsal.run_faults.job import Job, NodeFault, RunFault
from trainyard.aws.ec2 import terminate_instances
from trainyard.models.report import BackendName

AGENT = ["-m", "trainyard.node.agent"]
# kernel.panic=10, which the node playbook sets: the kernel restarts the machine after this time.
PANIC_SECONDS = 10.0


class AgentKill(NodeFault):
    """A killed agent: it gets SIGKILL."""

    kind: Literal["agent-kill"] = "agent-kill"

    def affect(self, job: Job, instance: str) -> bool:
        """Kill the agent."""
        return _signal_agent(job, instance, signal.SIGKILL)


class AgentHang(NodeFault):
    """An agent that hangs: it gets SIGSTOP."""

    kind: Literal["agent-hang"] = "agent-hang"

    def affect(self, job: Job, instance: str) -> bool:
        """Suspend the agent."""
        return _signal_agent(job, instance, signal.SIGSTOP)


class NodeHang(NodeFault):
    """A node that hangs: all of its processes get SIGSTOP, and its connections stay open.

    A node whose kernel hangs or that loses power closes no connections either (RFC 9293, 3.8.5).
    """

    kind: Literal["node-hang"] = "node-hang"

    def affect(self, job: Job, instance: str) -> bool:
        """Suspend all processes of the node."""
        job.hypervisor.suspend(instance)
        return True


class NodeTerminate(NodeFault):
    """A terminated node: EC2 terminates it, as when its host fails or a person terminates it."""

    kind: Literal["node-terminate"] = "node-terminate"

    def affect(self, job: Job, instance: str) -> bool:
        """Terminate the instance."""
        terminate_instances(job.hypervisor.region, [instance])
        return True


class KernelPanic(NodeFault):
    """A kernel panic: the node stops, its connections stay open, and it boots again after `kernel.panic` seconds.

    https://docs.kernel.org/admin-guide/sysctl/kernel.html#panic
    """

    kind: Literal["kernel-panic"] = "kernel-panic"

    def affect(self, job: Job, instance: str) -> bool:
        """Suspend all processes of the node, and restart it later."""
        job.hypervisor.suspend(instance)
        job.call_later(PANIC_SECONDS, lambda: job.hypervisor.restart(instance))
        return True


class DiskFull(NodeFault):
    """A full disk: a file uses all of its free space for some seconds."""

    backends: ClassVar[tuple[BackendName, ...]] = ("nspawn",)
    kind: Literal["disk-full"] = "disk-full"
    seconds: float = Field(gt=0, allow_inf_nan=False, description="Seconds until the file is deleted.")

    def prepare(self, backend: Backend) -> None:
        """Limit the size of the machines' disks."""
        backend.limit_disks()

    def affect(self, job: Job, instance: str) -> bool:
        """Fill the disk of the node."""
        job.hypervisor.fill_disk(instance, True)
        job.call_later(self.seconds, lambda: job.hypervisor.fill_disk(instance, False))
        return True


class BootHang(RunFault):
    """Replacements that never start: the next instances run according to EC2, but do not boot."""

    kind: Literal["boot-hang"] = "boot-hang"
    count: int = Field(default=1, ge=1, description="Number of instances.")

    def inject(self, job: Job) -> tuple[str, ...]:
        """Let the next instances hang."""
        job.hypervisor.hang_next_boots(self.count)
        return ()


def _signal_agent(job: Job, instance: str, number: signal.Signals) -> bool:
    agents = [each for each in job.hypervisor.processes(instance) if command_line(each)[-2:] == AGENT]
    for process in agents[:1]:
        send_signal(process, number)
    return bool(agents)
