"""The expected effects of a fault: whether it ends the attempt, and whether its nodes may be replaced."""

from collections import Counter
from collections.abc import Iterable, Sequence

from rehearsal.aws.control_models import InstanceRecord
from rehearsal.aws.faults import Fault, Reclaim, SpotInterruption
from rehearsal.faults import parse_faults
from rehearsal.run_faults.gpus import GpuFault
from rehearsal.run_faults.injection import ScheduledFault
from rehearsal.run_faults.job import RunFault
from rehearsal.run_faults.nodes import KernelPanic, NodeHang, NodeTerminate
from rehearsal.run_faults.ranks import OutOfMemoryKill, RankKill
from trainyard.models.decision import AttemptDecision
from trainyard.models.report import FaultInjection

_PLACE_AND_TIME = ("rank", "node", "gpu", "step", "seconds", "after")
_NODE_LOSSES = (NodeHang, NodeTerminate, KernelPanic)
_FATAL_FAULTS = (RankKill, OutOfMemoryKill, *_NODE_LOSSES, SpotInterruption, Reclaim)


def parse_fault(text: str) -> Fault | RunFault:
    """Return the fault of an injection."""
    (fault,) = parse_faults([text])
    return fault.fault if isinstance(fault, ScheduledFault) else fault


def fault_kind(text: str) -> str:
    """Return the kind of a fault: its text without place and time, such as `gpu,xid=79`."""
    kind, *parts = text.split(",")
    return ",".join([kind, *(part for part in parts if part.partition("=")[0] not in _PLACE_AND_TIME)])


def ends_attempt(text: str) -> bool:
    """Return whether an attempt cannot continue after the fault."""
    fault = parse_fault(text)
    if isinstance(fault, GpuFault):
        return fault.is_fatal
    return isinstance(fault, _FATAL_FAULTS)


def ended_attempts(
    injections: Sequence[FaultInjection], decisions: Sequence[AttemptDecision], *, only_expected: bool
) -> list[tuple[FaultInjection, AttemptDecision | None]]:
    """Return each injection with the decision on the attempt that it ended; None: it ended none.

    A fault has ended the attempt on which the controller decided next. For a fault that does not always end one, that
    decision must be earlier than the next fault; `only_expected`: it never counts.
    """
    ended = []
    for each in injections:
        decision = next((decision for decision in decisions if decision.time >= each.time), None)
        is_late = decision is not None and decision.time >= time_of_next(each, injections)
        ended.append((each, decision if ends_attempt(each.fault) or not (only_expected or is_late) else None))
    return ended


def time_of_next(injection: FaultInjection, injections: Iterable[FaultInjection]) -> float:
    """Return the time of the first later injection; infinity without one."""
    return min((other.time for other in injections if other.time > injection.time), default=float("inf"))


def replaceable_nodes(injections: Iterable[FaultInjection], instances: Iterable[InstanceRecord]) -> set[str]:
    """Return the nodes that may be replaced: lost ones, and those that need a second repair."""
    lost, repaired = set[str](), Counter[str]()
    for injection in injections:
        fault = parse_fault(injection.fault)
        if isinstance(fault, _NODE_LOSSES) or (isinstance(fault, GpuFault) and fault.needs_replacement):
            lost.update(injection.nodes)
        elif isinstance(fault, GpuFault):
            repaired.update(injection.nodes)
    lost |= {node for node, count in repaired.items() if count > 1}
    return lost | {instance.id for instance in instances if instance.interrupted_time is not None}
