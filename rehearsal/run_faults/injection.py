"""Injects faults while a job runs: after a step of the job, or some seconds after its first step."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rehearsal.aws.faults import Fault
from rehearsal.hypervisor.hypervisor import Hypervisor
from rehearsal.run_faults.clocks import ClockStep
from rehearsal.run_faults.gpus import GpuFault
from rehearsal.run_faults.head import ControllerCrash, HeadHang, HeadTerminate
from rehearsal.run_faults.job import Job, Rank, RunFault, find_ranks
from rehearsal.run_faults.network import NetworkPartition
from rehearsal.run_faults.nodes import AgentHang, AgentKill, BootHang, DiskFull, KernelPanic, NodeHang, NodeTerminate
from rehearsal.run_faults.ranks import OutOfMemoryKill, RankKill
from rehearsal.run_faults.slow_nodes import NodeSlow
from trainyard.aws.s3 import Bucket
from trainyard.models.layout import RunLayout, complete_checkpoints
from trainyard.models.metrics import MetricLine
from trainyard.models.report import FaultInjection
from trainyard.models.run import Control

POLL_SECONDS = 0.2
RUN_FAULTS: tuple[type[RunFault], ...] = (
    RankKill,
    OutOfMemoryKill,
    GpuFault,
    AgentKill,
    AgentHang,
    NodeHang,
    NodeTerminate,
    NodeSlow,
    KernelPanic,
    ClockStep,
    DiskFull,
    NetworkPartition,
    BootHang,
    HeadTerminate,
    HeadHang,
    ControllerCrash,
)


@dataclass(frozen=True)
class ScheduledFault:
    """A fault that is injected while a job runs. `after`: seconds since its first step."""

    fault: Fault | RunFault
    after: float = 0.0

    @property
    def step(self) -> int:
        """The step after which it is injected."""
        return self.fault.step if isinstance(self.fault, RunFault) else 1


class FaultInjector:
    """Injects faults while one run is active: into its account, or into its job.

    `remaining`: those that were not injected yet. `injections`: what was injected. `errors`: messages.
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
        self.errors: list[str] = []
        self._inject_into_account, self._describe = inject_into_account, describe
        self._first_step_at: float | None = None
        self._data, self._run = data, run
        self._job = Job(run, hypervisor)

    @contextmanager
    def injecting(self) -> Iterator[None]:
        """Inject the faults in a thread while the context manager is entered."""
        thread = threading.Thread(target=self._inject, name="faults")
        thread.start()
        try:
            yield
        finally:
            self._job.stopping.set()
            thread.join()

    def _inject(self) -> None:
        try:
            while (self.remaining or self._job.has_calls) and not self._job.stopping.wait(POLL_SECONDS):
                self._job.call_due()
                self.inject_due()
        except Exception as error:
            self._record(error)
        for each in self._job.finish():
            self._record(each)

    def _record(self, error: Exception) -> None:
        self.errors.append(f"the injection of faults failed: {type(error).__name__}: {error}")

    def inject_due(self) -> list[FaultInjection]:
        """Inject the faults that are due, and return the injections."""
        content = self._data.find(RunLayout(self._run).latest_metrics) if self.remaining else None
        if content is None:
            return []
        line, now, before = MetricLine.model_validate_json(content), time.monotonic(), len(self.injections)
        self._first_step_at = self._first_step_at or now
        for scheduled in [*self.remaining]:
            if line.step >= scheduled.step and now >= self._first_step_at + scheduled.after:
                self._inject_scheduled(scheduled)
        return self.injections[before:]

    def _inject_scheduled(self, scheduled: ScheduledFault) -> None:
        """Inject a fault and record it. If its rank or node does not run now, the fault remains for the next call."""
        injected_at, checkpoint = time.time(), self._newest_checkpoint()
        nodes: tuple[str, ...] | None = ()
        if isinstance(scheduled.fault, RunFault):
            self._job.ranks = self._ranks_of_attempt()
            nodes = scheduled.fault.inject(self._job)
        else:
            self._inject_into_account(scheduled.fault)
        if nodes is not None:
            self.remaining.remove(scheduled)
            text = self._describe(scheduled)
            self.injections.append(FaultInjection(fault=text, time=injected_at, nodes=nodes, checkpoint=checkpoint))

    def _newest_checkpoint(self) -> str | None:
        prefix = RunLayout(self._run).checkpoints
        return max(complete_checkpoints(self._data.keys(prefix), prefix), default=None)

    def _ranks_of_attempt(self) -> dict[int, Rank]:
        """Return the ranks of the current attempt; none between two attempts: ranks that remain are of lost nodes."""
        content = self._data.find(RunLayout(self._run).control)
        control = Control() if content is None else Control.model_validate_json(content)
        return {} if control.waiting_since is not None else find_ranks(self._run, control.nodes)
