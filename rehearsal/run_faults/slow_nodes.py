"""A node whose processes are slow."""

import signal
import threading
import time
from typing import Literal

import psutil
from pydantic import Field

from rehearsal.hypervisor.processes import command_line, send_signal
from rehearsal.run_faults.job import Job, NodeFault

# Short compared with a step, so that each step is slow, and longer than a time slice of the scheduler.
PERIOD_SECONDS = 0.05
SEARCH_SECONDS = 1.0
HEALTH_CHECK = "trainyard.node.health_check"


class NodeSlow(NodeFault):
    """A slow node, as with GPUs whose clocks are reduced.

    Its ranks and the processes of its health checks are suspended for a share of the time.
    """

    kind: Literal["node-slow"] = "node-slow"
    factor: float = Field(default=2.0, gt=1, le=10, description="How many times as long a computation takes.")

    def affect(self, job: Job, instance: str) -> bool:
        """Slow the node down until it is terminated or the job has ended."""
        threading.Thread(target=self._slow_down, args=(job, instance), name=f"slow {instance}", daemon=True).start()
        return True

    def _slow_down(self, job: Job, instance: str) -> None:
        searched_at, processes = float("-inf"), list[psutil.Process]()
        while not job.stopping.is_set():
            if time.monotonic() > searched_at + SEARCH_SECONDS:
                checks = [each for each in job.hypervisor.processes(instance) if HEALTH_CHECK in command_line(each)]
                processes = [*job.processes_of(instance), *checks]
                searched_at = time.monotonic()
            for number, share in ((signal.SIGSTOP, 1 - 1 / self.factor), (signal.SIGCONT, 1 / self.factor)):
                for process in processes:
                    send_signal(process, number)
                time.sleep(PERIOD_SECONDS * share)
