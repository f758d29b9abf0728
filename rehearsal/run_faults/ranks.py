"""Faults of one rank."""

import signal
from typing import Literal

from pydantic import Field

from rehearsal.hypervisor.processes import send_signal
from rehearsal.run_faults.gpus import write_kernel_log
from rehearsal.run_faults.job import Job, RunFault


class RankKill(RunFault):
    """A killed rank: it gets SIGKILL.

    Ranks on Gloo exit when a peer dies. With `peers=hang` the other ranks stop and ignore SIGTERM, as ranks that hang
    in a collective operation of NCCL do (pytorch issue 163546, nccl issue 1260).
    """

    kind: Literal["rank-kill"] = "rank-kill"
    rank: int = Field(ge=0, description="Global rank that is killed.")
    peers: Literal["exit", "hang"] = Field(default="exit", description="What the other ranks do.")

    def inject(self, job: Job) -> tuple[str, ...] | None:
        """Kill the rank."""
        killed = job.ranks.get(self.rank)
        if killed is None:
            return None
        if self.peers == "hang":
            for rank in job.ranks.values():
                if rank is not killed:
                    send_signal(rank.process, signal.SIGSTOP)
        send_signal(killed.process, signal.SIGKILL)
        return (killed.instance,)


class OutOfMemoryKill(RunFault):
    """A rank that the kernel kills because memory is exhausted: it gets SIGKILL, and the kernel log has a record.

    Text of the record: __oom_kill_process in mm/oom_kill.c of Linux.
    """

    kind: Literal["oom-kill"] = "oom-kill"
    rank: int = Field(ge=0, description="Global rank that is killed.")

    def inject(self, job: Job) -> tuple[str, ...] | None:
        """Write the record and kill the rank."""
        rank = job.ranks.get(self.rank)
        if rank is None:
            return None
        sizes = "total-vm:98034296kB, anon-rss:62914304kB, file-rss:1024kB, shmem-rss:0kB"
        text = f"Out of memory: Killed process {rank.process.pid} (python3) {sizes}, UID:0 pgtables:1kB oom_score_adj:0"
        try:
            write_kernel_log(rank.root, text)
        except OSError:  # the rank has ended
            return None
        send_signal(rank.process, signal.SIGKILL)
        return (rank.instance,)
