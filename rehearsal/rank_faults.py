"""Faults of the job's ranks, injected by signals when the job has reached a step."""

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import psutil
from pydantic import Field

from rehearsal.hypervisor.processes import environments, send_signal
from trainyard.aws.s3 import Bucket
from trainyard.base import StrictModel
from trainyard.models.layout import RunLayout
from trainyard.models.metrics import MetricLine

POLL_SECONDS = 0.2


class RankKill(StrictModel):
    """A killed rank: it gets SIGKILL when the job has reached a step.

    Ranks on Gloo exit when a peer dies. With `peers=hang` the other ranks stop and ignore SIGTERM, as ranks that hang
    in a collective operation of NCCL do (pytorch issue 163546, nccl issue 1260).
    """

    kind: Literal["rank-kill"] = "rank-kill"
    rank: int = Field(ge=0, description="Global rank that is killed.")
    step: int = Field(ge=1, description="Step of the built-in trainer after which it is killed.")
    peers: Literal["exit", "hang"] = Field(default="exit", description="What the other ranks do.")


class RankFaults:
    """Injects faults into the ranks of one run. `remaining`: those that have had no effect yet."""

    def __init__(self, faults: Sequence[RankKill], data: Bucket, run: str) -> None:
        self.remaining = list(faults)
        self._data, self._run = data, run
        self._stopping = threading.Event()

    @contextmanager
    def injecting(self) -> Iterator[None]:
        """Inject the faults in a thread while the context manager is entered."""
        thread = threading.Thread(target=self._inject, name="rank faults")
        thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            thread.join()

    def _inject(self) -> None:
        while self.remaining and not self._stopping.wait(POLL_SECONDS):
            content = self._data.find(RunLayout(self._run).latest_metrics)
            step = 0 if content is None else MetricLine.model_validate_json(content).step
            for fault in [fault for fault in self.remaining if step >= fault.step]:
                if self._kill(fault):
                    self.remaining.remove(fault)

    def _kill(self, fault: RankKill) -> bool:
        """Kill the rank; return False when it does not run, as between two attempts."""
        ranks = find_ranks(self._run)
        killed = ranks.pop(fault.rank, None)
        if killed is None:
            return False
        if fault.peers == "hang":
            for process in ranks.values():
                send_signal(process, signal.SIGSTOP)
        send_signal(killed, signal.SIGKILL)
        return True


def find_ranks(run: str) -> dict[int, psutil.Process]:
    """Return rank -> process of the ranks of a run on this machine, without processes that they have started."""
    ranks = {
        process: int(environment["RANK"])
        for process, environment in environments()
        if environment.get("TRAINYARD_RUN") == run and "RANK" in environment
    }
    # The processes that a rank starts inherit its environment.
    return {rank: process for process, rank in ranks.items() if _parent(process) not in ranks}


def _parent(process: psutil.Process) -> psutil.Process | None:
    try:
        return process.parent()
    except psutil.Error:  # it has ended
        return None
