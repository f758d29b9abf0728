"""Faults of the head, injected when the job has reached a step."""

import signal
import threading
from typing import Literal

from pydantic import Field

from rehearsal.hypervisor.hypervisor import Hypervisor
from trainyard.aws.ec2 import terminate_instances
from trainyard.base import StrictModel


class HeadTerminate(StrictModel):
    """A terminated head: EC2 terminates it when the job has reached a step, and its Auto Scaling group replaces it."""

    kind: Literal["head-terminate"] = "head-terminate"
    step: int = Field(default=1, ge=1, description="Step of the built-in trainer after which it is terminated.")


class HeadKill(StrictModel):
    """A suspended head: its processes stop when the job has reached a step, and continue later."""

    kind: Literal["head-kill"] = "head-kill"
    step: int = Field(default=1, ge=1, description="Step of the built-in trainer after which they are suspended.")
    seconds: float = Field(gt=0, allow_inf_nan=False, description="Seconds until they continue.")


def inject_head_fault(fault: HeadTerminate | HeadKill, hypervisor: Hypervisor, stopping: threading.Event) -> bool:
    """Inject a fault; return False when no head runs. Suspended processes continue early when `stopping` is set."""
    head = hypervisor.running_head()
    if head is None:
        return False
    if isinstance(fault, HeadTerminate):
        terminate_instances(head.region, [head.id])
        return True
    hypervisor.send_signal(head.id, signal.SIGSTOP)
    try:
        stopping.wait(fault.seconds)
    finally:
        hypervisor.send_signal(head.id, signal.SIGCONT)
    return True
