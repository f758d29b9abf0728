"""Faults of the head and of its controller."""

from typing import Literal

from pydantic import Field

from rehearsal.hypervisor.processes import command_line, kill
from rehearsal.run_faults.job import Job, RunFault
from trainyard.aws.ec2 import terminate_instances

CONTROLLER = ["-m", "trainyard.node.controller"]


class HeadTerminate(RunFault):
    """A terminated head: EC2 terminates it, and its Auto Scaling group replaces it."""

    kind: Literal["head-terminate"] = "head-terminate"

    def inject(self, job: Job) -> tuple[str, ...] | None:
        """Terminate the instance."""
        head = job.hypervisor.running_head()
        if head is None:
            return None
        terminate_instances(job.hypervisor.region, [head.id])
        return ()


class HeadHang(RunFault):
    """A head that stops: all of its processes get SIGSTOP, and continue later."""

    kind: Literal["head-hang"] = "head-hang"
    seconds: float = Field(gt=0, allow_inf_nan=False, description="Seconds until they continue.")

    def inject(self, job: Job) -> tuple[str, ...] | None:
        """Suspend all processes of the head."""
        head = job.hypervisor.running_head()
        if head is None:
            return None
        job.hypervisor.suspend(head.id)
        job.call_later(self.seconds, lambda: job.hypervisor.resume(head.id))
        return ()


class ControllerCrash(RunFault):
    """A controller that crashes repeatedly: it gets SIGKILL whenever it runs, for some seconds."""

    kind: Literal["controller-crash"] = "controller-crash"
    seconds: float = Field(gt=0, allow_inf_nan=False, description="Seconds until it runs undisturbed.")

    def inject(self, job: Job) -> tuple[str, ...] | None:
        """Kill the controller of the head, also when systemd has restarted it."""

        def kill_controller() -> bool:
            head = job.hypervisor.running_head()
            processes = job.hypervisor.processes(head.id) if head is not None else []
            controllers = [each for each in processes if command_line(each)[-2:] == CONTROLLER]
            kill(controllers)
            return bool(controllers)

        if not kill_controller():
            return None
        job.call_repeatedly(kill_controller, self.seconds)
        return ()
