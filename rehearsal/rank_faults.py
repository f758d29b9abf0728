"""Faults of the job's ranks, injected by signals when the job has reached a step."""

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import psutil
from pydantic import Field

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
        if fault.rank not in ranks:
            return False
        if fault.peers == "hang":
            for rank, process in ranks.items():
                if rank != fault.rank:
                    _send(process, signal.SIGSTOP)
        return _send(ranks[fault.rank], signal.SIGKILL)


def find_ranks(run: str) -> dict[int, psutil.Process]:
    """Return rank -> process of the ranks of a run on this machine, without processes that they have started."""
    candidates: dict[int, tuple[int, psutil.Process]] = {}
    for process in psutil.process_iter():
        try:
            environment, parent = process.environ(), process.ppid()
        except (psutil.Error, OSError):  # it has ended, or belongs to another user
            continue
        if environment.get("TRAINYARD_RUN") == run and environment.get("RANK", "").isdecimal():
            candidates[process.pid] = (parent, process)
    return {
        int(process.environ()["RANK"]): process
        for parent, process in candidates.values()
        if parent not in candidates and process.is_running()
    }


def _send(process: psutil.Process, number: signal.Signals) -> bool:
    try:
        process.send_signal(number)
    except psutil.Error:
        return False
    return True
