"""Faults that are injected while a job runs: those of its ranks and nodes after a step, any fault after seconds."""

import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil
from pydantic import Field

from rehearsal.aws.faults import Fault
from rehearsal.gpu_faults import GpuFault
from rehearsal.head_faults import HeadKill, HeadTerminate, inject_head_fault
from rehearsal.hypervisor.hypervisor import Hypervisor
from rehearsal.hypervisor.processes import environments, find_rank_log, send_signal
from rehearsal.node_faults import NodeFault
from trainyard.aws.s3 import Bucket
from trainyard.base import StrictModel
from trainyard.models.layout import RunLayout, complete_checkpoints
from trainyard.models.metrics import MetricLine
from trainyard.models.report import FaultInjection
from trainyard.models.run import Control
from trainyard.node.agent.state import AGENT_STATE, read_state

POLL_SECONDS = 0.2


class RankKill(StrictModel):
    """A killed rank: it gets SIGKILL when the job has reached a step.

    Ranks on Gloo exit when a peer dies. With `peers=hang` the other ranks stop and ignore SIGTERM, as ranks that hang
    in a collective operation of NCCL do (pytorch issue 163546, nccl issue 1260).
    """

    kind: Literal["rank-kill"] = "rank-kill"
    rank: int = Field(ge=0, description="Global rank that is killed.")
    step: int = Field(default=1, ge=1, description="Step of the built-in trainer after which it is killed.")
    peers: Literal["exit", "hang"] = Field(default="exit", description="What the other ranks do.")


RankFault = RankKill | GpuFault | NodeFault | HeadTerminate | HeadKill


@dataclass(frozen=True)
class ScheduledFault:
    """A fault that is injected while a job runs. `after`: seconds since its first step."""

    fault: Fault | RankFault
    after: float = 0.0

    @property
    def step(self) -> int:
        """The step after which it is injected."""
        return self.fault.step if isinstance(self.fault, RankFault) else 1


@dataclass(frozen=True)
class Rank:
    """A rank of the job. `node`: rank of its node. `instance`: EC2 instance id of the node. `root`: its root."""

    process: psutil.Process
    node: int
    instance: str
    root: Path


class RankFaults:
    """Injects faults while one run is active: into its account, or through its ranks.

    `remaining`: those that were not injected yet. `injections`: what was injected.
    """

    def __init__(
        self,
        faults: Sequence[ScheduledFault],
        data: Bucket,
        run: str,
        hypervisor: Hypervisor,
        inject_into_account: Callable[[Fault], None],
        describe: Callable[[ScheduledFault], str],
    ) -> None:
        self.remaining = list(faults)
        self.injections: list[FaultInjection] = []
        self._inject_into_account, self._describe = inject_into_account, describe
        self._first_step_at: float | None = None
        self._lasting: dict[str, GpuFault] = {}  # instance -> fault that ends every rank on it
        self._data, self._run, self._hypervisor = data, run, hypervisor
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
        while (self.remaining or self._lasting) and not self._stopping.wait(POLL_SECONDS):
            self._end_ranks_of_broken_nodes()
            self.inject_due()

    def inject_due(self) -> list[FaultInjection]:
        """Inject the faults that are due, and return the injections."""
        content = self._data.find(RunLayout(self._run).latest_metrics)
        if content is None:
            return []
        line, now, before = MetricLine.model_validate_json(content), time.monotonic(), len(self.injections)
        self._first_step_at = self._first_step_at or now
        for scheduled in [*self.remaining]:
            if line.step >= scheduled.step and now >= self._first_step_at + scheduled.after:
                self._inject_scheduled(scheduled)
        return self.injections[before:]

    def _inject_scheduled(self, scheduled: ScheduledFault) -> None:
        """Inject a fault and record it; it remains when its rank or its node do not run, as between two attempts."""
        injected_at, checkpoint = time.time(), self._newest_checkpoint()
        nodes = self._inject_fault(scheduled.fault)
        if nodes is not None:
            self.remaining.remove(scheduled)
            text = self._describe(scheduled)
            self.injections.append(FaultInjection(fault=text, time=injected_at, nodes=nodes, checkpoint=checkpoint))

    def _newest_checkpoint(self) -> str | None:
        prefix = RunLayout(self._run).checkpoints
        return max(complete_checkpoints(self._data.keys(prefix), prefix), default=None)

    def _inject_fault(self, fault: Fault | RankFault) -> tuple[str, ...] | None:
        """Inject a fault; return the instances that it affects, as far as they are known. None: it was not possible."""
        if not isinstance(fault, RankFault):
            self._inject_into_account(fault)
            return ()
        if isinstance(fault, HeadTerminate | HeadKill):
            return () if inject_head_fault(fault, self._hypervisor, self._stopping) else None
        content = self._data.find(RunLayout(self._run).control)
        control = Control() if content is None else Control.model_validate_json(content)
        if control.waiting_since is not None:  # between two attempts, ranks that remain are those of lost nodes
            return None
        ranks = find_ranks(self._run, control.nodes)
        if isinstance(fault, RankKill):
            return self._kill(fault, ranks)
        ranks_of_node = [rank for rank in ranks.values() if rank.node == fault.node]
        if not ranks_of_node:
            return None
        rank = ranks_of_node[0]
        is_injected = (
            self._break_gpu(fault, ranks_of_node) if isinstance(fault, GpuFault) else fault.inject(rank.process)
        )
        return (rank.instance,) if is_injected else None

    def _kill(self, fault: RankKill, ranks: dict[int, Rank]) -> tuple[str, ...] | None:
        killed = ranks.pop(fault.rank, None)
        if killed is None:
            return None
        if fault.peers == "hang":
            for rank in ranks.values():
                send_signal(rank.process, signal.SIGSTOP)
        send_signal(killed.process, signal.SIGKILL)
        return (killed.instance,)

    def _break_gpu(self, fault: GpuFault, ranks: Sequence[Rank]) -> bool:
        try:
            fault.inject(ranks[0].root, [rank.process for rank in ranks])
        except OSError:  # the rank by which the node is reached has ended
            return False
        if fault.lasts:
            self._lasting[ranks[0].instance] = fault
        return True

    def _end_ranks_of_broken_nodes(self) -> None:
        for rank in find_ranks(self._run).values() if self._lasting else ():
            if fault := self._lasting.get(rank.instance):
                fault.end_ranks([rank.process])


def find_ranks(run: str, nodes: Collection[str] | None = None) -> dict[int, Rank]:
    """Return number -> rank of the ranks of a run on this machine, without processes that they have started.

    `nodes`: instances of the attempt; none: also lost nodes, whose ranks have the same numbers as later ones. Variables
    such as RANK are not visible in /proc for a rank that was forked.
    """
    logs = {
        process: (environment, log)
        for process, environment in environments()
        if environment.get("TRAINYARD_RUN") == run and (log := find_rank_log(process)) is not None
    }
    ranks = {}
    for process, (variables, log) in logs.items():
        if nodes is not None and variables["TRAINYARD_NODE"] not in nodes:
            continue
        if _parent(process) in logs:  # the processes that a rank starts inherit its stderr
            continue
        root = _node_root(process, variables)
        with suppress(OSError):  # the process has ended
            first = read_state(root / "opt/trainyard/runs" / run / AGENT_STATE).first_rank
            processes = len(list((Path(f"/proc/{process.pid}/root") / str(log.parents[1]).lstrip("/")).iterdir()))
            number = first + int(log.parent.name)
            ranks[number] = Rank(process, number // processes, variables["TRAINYARD_NODE"], root)
    return ranks


def _node_root(process: psutil.Process, variables: Mapping[str, str]) -> Path:
    """Return the root folder of the node as a path of this machine.

    A booted node has its own root directory, a node of the process backend is a folder.
    """
    return Path(f"/proc/{process.pid}/root") / variables.get("TRAINYARD_ROOT", "").lstrip("/")


def _parent(process: psutil.Process) -> psutil.Process | None:
    try:
        return process.parent()
    except psutil.Error:  # it has ended
        return None
