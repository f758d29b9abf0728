"""A node whose processes are slow."""

import signal
import threading
import time
from typing import Literal

import psutil
from pydantic import Field

from rehearsal.hypervisor.processes import send_signal
from rehearsal.run_faults.job import Job, RunFault

# Short compared with a step, so that each step is slow, and longer than a time slice of the scheduler.
PERIOD_SECONDS = 0.05
SEARCH_SECONDS = 1.0


class NodeSlow(RunFault):
    """A slow node, as with GPUs whose clocks are reduced.

    Its ranks and the processes of its health checks are suspended for a share of the time.
    """

    kind: Literal["node-slow"] = "node-slow"
    node: int = Field(ge=0, description="Worker node, in the order of node ranks.")
    factor: float = Field(default=2.0, gt=1, le=10, description="How many times as long a computation takes.")

    def inject(self, job: Job) -> tuple[str, ...] | None:
        """Slow the node down until it is terminated or the job has ended."""
        instance = job.instance(self.node)
        if instance is None:
            return None
        threading.Thread(target=self._slow_down, args=(job, instance), name=f"slow {instance}", daemon=True).start()
        return (instance,)

    def _slow_down(self, job: Job, instance: str) -> None:
        searched_at, processes = float("-inf"), list[psutil.Process]()
        while not job.stopping.is_set():
            if time.monotonic() > searched_at + SEARCH_SECONDS:
                checks = [each for each in job.hypervisor.processes(instance) if _is_health_check(each)]
                processes = [*job.processes_of(instance), *checks]
                searched_at = time.monotonic()
            for number, share in ((signal.SIGSTOP, 1 - 1 / self.factor), (signal.SIGCONT, 1 / self.factor)):
                for process in processes:
                    send_signal(process, number)
                time.sleep(PERIOD_SECONDS * share)


def _is_health_check(process: psutil.Process) -> bool:
    try:
        return "trainyard.node.health_check" in process.cmdline()
    except psutil.Error:  # it has ended
        return False
