"""The faults of a chaos run, from its seed. Without side effects."""

import random
from collections.abc import Callable, Mapping

from rehearsal.aws.faults import Fault, ServiceOutage, SpotInterruption
from rehearsal.run_faults.gpus import GpuFault
from rehearsal.run_faults.head import ControllerCrash, HeadHang, HeadTerminate
from rehearsal.run_faults.injection import ScheduledFault
from rehearsal.run_faults.job import RunFault
from rehearsal.run_faults.nodes import AgentHang, AgentKill, KernelPanic, NodeHang, NodeTerminate
from rehearsal.run_faults.ranks import OutOfMemoryKill, RankKill
from trainyard.config.settings import StackSettings

AnyFault = Fault | RunFault
OUTAGE_SECONDS = (20.0, 60.0)
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


def plan_faults(seed: int, minutes: float, period_seconds: float, settings: StackSettings) -> list[ScheduledFault]:
    """Return the faults of a chaos run, one per period on average. Each kind occurs before one is repeated."""
    source = random.Random(seed)
    faults, remaining = list[ScheduledFault](), list[_Choose]()
    for number in range(int(minutes * 60 / period_seconds)):
        if not remaining:
            remaining = [*fault_kinds(settings).values()]
            source.shuffle(remaining)
        delay = (number + 0.5 + source.uniform(-JITTER, JITTER)) * period_seconds
        faults.append(ScheduledFault(remaining.pop()(source, settings), after=round(delay, 1)))
    return faults


def fault_kinds(settings: StackSettings) -> dict[str, _Choose]:
    """Return the kinds of faults that can affect the stack, with the function that chooses one."""
    has_spot = any(group.market == "spot" for group in settings.groups)
    gpus = _GPU_KINDS if settings.worker_type.gpu is not None else {}
    return {**_KINDS, **gpus, **(_SPOT_KINDS if has_spot else {})}
