"""The faults of a chaos run, from its seed. Without side effects."""

import math
import random
from collections.abc import Callable, Mapping
from typing import Literal

from rehearsal.aws.faults import Fault, ServiceOutage, SpotInterruption
from rehearsal.run_faults.clocks import ClockStep
from rehearsal.run_faults.gpus import GpuFault
from rehearsal.run_faults.head import ControllerCrash, HeadHang, HeadTerminate
from rehearsal.run_faults.injection import ScheduledFault
from rehearsal.run_faults.job import RunFault
from rehearsal.run_faults.network import NetworkPartition
from rehearsal.run_faults.nodes import AgentHang, AgentKill, DiskFull, KernelPanic, NodeHang, NodeTerminate
from rehearsal.run_faults.ranks import OutOfMemoryKill, RankKill
from rehearsal.run_faults.slow_nodes import NodeSlow
from trainyard.config.settings import StackSettings
from trainyard.models.report import BackendName, NotRehearsed

AnyFault = Fault | RunFault
OUTAGE_SECONDS = (20.0, 60.0)
CLOCK_STEP_SECONDS = (-5.0, 5.0)
SLOW_FACTORS = (2.5, 4.0)
# Until a slow node is detected, checked and replaced. After any other fault the comparison of the ranks starts again.
SLOW_NODE_SECONDS = 180.0
# Share of the period by which a fault may be earlier or later.
JITTER = 0.25
_Choose = Callable[[random.Random, StackSettings], AnyFault]


def _any_rank(source: random.Random, settings: StackSettings) -> int:
    return source.randrange(settings.nodes * settings.processes_per_node)


def _any_node(source: random.Random, settings: StackSettings) -> int:
    return source.randrange(settings.nodes)


def _any_gpu(source: random.Random, settings: StackSettings) -> int:
    assert settings.worker_type.gpu is not None
    return source.randrange(settings.worker_type.gpu.count)


def _outage(service: str) -> _Choose:
    return lambda source, _: ServiceOutage(service=service, seconds=round(source.uniform(*OUTAGE_SECONDS)))


def _partition(between: Literal["node-head", "nodes"]) -> _Choose:
    def choose(source: random.Random, settings: StackSettings) -> NetworkPartition:
        seconds = round(source.uniform(*OUTAGE_SECONDS))
        return NetworkPartition(between=between, node=_any_node(source, settings), seconds=seconds)

    return choose


_KINDS: Mapping[str, _Choose] = {
    "rank killed": lambda source, settings: RankKill(rank=_any_rank(source, settings)),
    "peers hang": lambda source, settings: RankKill(rank=_any_rank(source, settings), peers="hang"),
    "rank out of memory": lambda source, settings: OutOfMemoryKill(rank=_any_rank(source, settings)),
    "agent killed": lambda source, settings: AgentKill(node=_any_node(source, settings)),
    "agent hung": lambda source, settings: AgentHang(node=_any_node(source, settings)),
    "node hung": lambda source, settings: NodeHang(node=_any_node(source, settings)),
    "node terminated": lambda source, settings: NodeTerminate(node=_any_node(source, settings)),
    "kernel panic": lambda source, settings: KernelPanic(node=_any_node(source, settings)),
    "controller crashes": lambda source, _: ControllerCrash(seconds=round(source.uniform(*OUTAGE_SECONDS))),
    "head suspended": lambda source, _: HeadHang(seconds=round(source.uniform(*OUTAGE_SECONDS))),
    "head terminated": lambda *_: HeadTerminate(),
    "S3 outage": _outage("s3"),
    "Auto Scaling outage": _outage("autoscaling"),
    "slow node": lambda source, settings: NodeSlow(
        node=_any_node(source, settings), factor=round(source.uniform(*SLOW_FACTORS), 1)
    ),
}
_BACKEND_KINDS: Mapping[BackendName, Mapping[str, _Choose]] = {
    "process": {
        "clock stepped": lambda source, settings: ClockStep(
            node=_any_node(source, settings), seconds=round(source.uniform(*CLOCK_STEP_SECONDS), 1)
        ),
    },
    "nspawn": {
        "disk full": lambda source, settings: DiskFull(
            node=_any_node(source, settings), seconds=round(source.uniform(*OUTAGE_SECONDS))
        ),
        "node without network to the head": _partition("node-head"),
        "nodes without network to each other": _partition("nodes"),
    },
}
_GPU_KINDS: Mapping[str, _Choose] = {
    "GPU lost": lambda source, settings: GpuFault(
        node=_any_node(source, settings), gpu=_any_gpu(source, settings), xid=79
    ),
    "GPU needs a reboot": lambda source, settings: GpuFault(
        node=_any_node(source, settings), gpu=_any_gpu(source, settings), xid=154
    ),
    "GPU needs a reset": lambda source, settings: GpuFault(
        node=_any_node(source, settings), gpu=_any_gpu(source, settings), xid=94
    ),
}
_SPOT_KINDS: Mapping[str, _Choose] = {"Spot notice": lambda *_: SpotInterruption(seconds=0)}


def plan_faults(
    seed: int, minutes: float, period_seconds: float, settings: StackSettings, backend: BackendName
) -> list[ScheduledFault]:
    """Return the faults of a chaos run, one per period on average. Each kind occurs before one is repeated.

    A slow node needs several periods, which have no other fault.
    """
    source, kinds = random.Random(seed), fault_kinds(settings, backend)
    faults, remaining = list[ScheduledFault](), list[str]()
    number, count = 0, int(minutes * 60 / period_seconds)
    while number < count:
        fitting = [kind for kind in remaining if number + _count_periods(kind, period_seconds) <= count]
        if not fitting:
            remaining = source.sample(sorted(kinds), len(kinds))
            continue
        kind = fitting[-1]
        remaining.remove(kind)
        delay = (number + 0.5 + source.uniform(-JITTER, JITTER)) * period_seconds
        faults.append(ScheduledFault(kinds[kind](source, settings), after=round(delay, 1)))
        number += _count_periods(kind, period_seconds)
    return faults


def _count_periods(kind: str, period_seconds: float) -> int:
    return max(1, math.ceil(SLOW_NODE_SECONDS / period_seconds)) if kind == "slow node" else 1


def fault_kinds(settings: StackSettings, backend: BackendName) -> dict[str, _Choose]:
    """Return the kinds of faults that can affect the stack, with the function that chooses one."""
    has_spot = any(group.market == "spot" for group in settings.groups)
    gpus = _GPU_KINDS if settings.worker_type.gpu is not None else {}
    return {**_KINDS, **_BACKEND_KINDS[backend], **gpus, **(_SPOT_KINDS if has_spot else {})}


def missing_kinds(backend: BackendName) -> tuple[NotRehearsed, ...]:
    """Return the kinds of faults that only nodes of other backends can have."""
    return tuple(
        NotRehearsed(subject=kind, reason=f"nodes of the backend {backend} cannot have this fault")
        for other, kinds in _BACKEND_KINDS.items()
        for kind in kinds
        if other != backend
    )
