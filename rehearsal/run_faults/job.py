"""The ranks and machines of a running job, for the injection of faults."""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import psutil
from pydantic import Field

from rehearsal.hypervisor.backend import Backend
from rehearsal.hypervisor.hypervisor import Hypervisor
from rehearsal.hypervisor.processes import environments, find_rank_log
from trainyard.base import StrictModel
from trainyard.models.report import BackendName
from trainyard.node.agent.state import AGENT_STATE, read_state


@dataclass(frozen=True)
class Rank:
    """A rank of the job. `node`: rank of its node. `instance`: EC2 instance id of the node. `root`: its root."""

    process: psutil.Process
    node: int
    instance: str
    root: Path


class Job:
    """A running job, and what its faults do later.

    `ranks`: number -> rank of the current attempt; none between two attempts.
    """

    def __init__(self, run: str, hypervisor: Hypervisor) -> None:
        self.run, self.hypervisor = run, hypervisor
        self.ranks: Mapping[int, Rank] = {}
        self.stopping = threading.Event()
        self._later: list[tuple[float, Callable[[], object]]] = []
        self._repeated: list[tuple[float, Callable[[], object]]] = []

    def ranks_of(self, node: int) -> list[Rank]:
        """Return the ranks of the node with this node rank."""
        return [rank for rank in self.ranks.values() if rank.node == node]

    def instance(self, node: int) -> str | None:
        """Return the instance of the node with this node rank; None between two attempts."""
        return next((rank.instance for rank in self.ranks_of(node)), None)

    def processes_of(self, instance: str) -> list[psutil.Process]:
        """Return the processes of the ranks that run on an instance now, also those of a later attempt."""
        return [rank.process for rank in find_ranks(self.run, [instance]).values()]

    def call_later(self, seconds: float, call: Callable[[], object]) -> None:
        """Call a function after some seconds, or when the job has ended."""
        self._later.append((time.monotonic() + seconds, call))

    def call_repeatedly(self, call: Callable[[], object], seconds: float = float("inf")) -> None:
        """Call a function several times per second for some seconds, at most until the job has ended."""
        self._repeated.append((time.monotonic() + seconds, call))

    @property
    def has_calls(self) -> bool:
        """Whether functions will be called."""
        return bool(self._later or self._repeated)

    def call_due(self) -> None:
        """Call the functions that are due."""
        now = time.monotonic()
        due = [call for when, call in self._later if now >= when]
        self._later = [(when, call) for when, call in self._later if now < when]
        self._repeated = [(end, call) for end, call in self._repeated if now < end]
        for call in (*due, *(call for _, call in self._repeated)):
            call()

    def finish(self) -> Iterator[Exception]:
        """Call the functions that were to be called later, such as the end of a fault; yield their errors."""
        later, self._later, self._repeated = self._later, [], []
        for _, call in later:
            try:
                call()
            except Exception as error:
                yield error


class RunFault(StrictModel):
    """A fault of a rank, a node or the head."""

    backends: ClassVar[tuple[BackendName, ...]] = ("process", "nspawn")
    kind: str
    step: int = Field(default=1, ge=1, description="Step of the built-in trainer after which it is injected.")

    def prepare(self, backend: Backend) -> None:
        """Prepare the machines that boot later for the fault. Most faults need nothing."""

    def inject(self, job: Job) -> tuple[str, ...] | None:
        """Inject the fault; return the instances that it affects. None: it is not possible now, as between attempts."""
        raise NotImplementedError


class NodeFault(RunFault):
    """A fault of a worker node."""

    node: int = Field(ge=0, description="Worker node, in the order of node ranks.")

    def inject(self, job: Job) -> tuple[str, ...] | None:
        """Inject the fault into the instance of the node."""
        instance = job.instance(self.node)
        return (instance,) if instance is not None and self.affect(job, instance) else None

    def affect(self, job: Job, instance: str) -> bool:
        """Inject the fault into this instance; return False if it is not possible now."""
        raise NotImplementedError


def find_ranks(run: str, nodes: Collection[str] | None = None) -> dict[int, Rank]:
    """Return number -> rank of the ranks of a run on this machine, without processes that they have started.

    `nodes`: instances of the attempt; None: all instances. A lost node may still run ranks, with numbers that ranks of
    other nodes also have. Variables such as RANK are not visible in /proc for a rank that was forked.
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
