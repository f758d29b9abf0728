"""The expected effects of a fault: whether it ends the attempt, and whether its nodes may be replaced."""

from collections import Counter
from collections.abc import Iterable, Sequence

from rehearsal.aws.control_models import InstanceRecord
from rehearsal.aws.faults import Fault, Reclaim, SpotInterruption
from rehearsal.faults import parse_faults
from rehearsal.run_faults.gpus import GpuFault
from rehearsal.run_faults.injection import ScheduledFault
from rehearsal.run_faults.job import RunFault
from rehearsal.run_faults.network import NetworkPartition
from rehearsal.run_faults.nodes import KernelPanic, NodeHang, NodeTerminate
from rehearsal.run_faults.ranks import OutOfMemoryKill, RankKill
from rehearsal.run_faults.slow_nodes import NodeSlow
from trainyard.models.decision import AttemptDecision
from trainyard.models.report import FaultInjection

_OMITTED_FIELDS = ("rank", "node", "gpu", "step", "seconds", "factor", "after")
_REPLACED_NODES = (NodeHang, NodeTerminate, KernelPanic, NodeSlow)
_FATAL_FAULTS = (RankKill, OutOfMemoryKill, *_REPLACED_NODES, SpotInterruption, Reclaim)


def parse_fault(text: str) -> Fault | RunFault:
    """Return the fault of an injection."""
    (fault,) = parse_faults([text])
    return fault.fault if isinstance(fault, ScheduledFault) else fault


def fault_kind(text: str) -> str:
    """Return the kind of a fault: its text without place, time and size, such as `gpu,xid=79`."""
    kind, *parts = text.split(",")
    return ",".join([kind, *(part for part in parts if part.partition("=")[0] not in _OMITTED_FIELDS)])


def ends_attempt(text: str) -> bool:
    """Return whether an attempt cannot continue after the fault, or is interrupted to replace a slow node."""
    fault = parse_fault(text)
    if isinstance(fault, GpuFault):
        return fault.is_fatal
    return isinstance(fault, _FATAL_FAULTS)


def _may_end_attempt(text: str) -> bool:
    """Return whether the fault ends some attempts and not others: connections survive a short partition."""
    fault = parse_fault(text)
    return isinstance(fault, NetworkPartition) and fault.between == "nodes"


def ended_attempts(
    injections: Sequence[FaultInjection], decisions: Sequence[AttemptDecision], *, only_expected: bool
) -> list[tuple[FaultInjection, AttemptDecision | None]]:
    """Return each injection with the decision on the attempt that it ended; None if it ended no attempt.

    The first decision of the controller after a fault is attributed to the fault. If the fault does not always end an
    attempt, that decision must be earlier than the next fault. `only_expected`: no decision is attributed to a fault
    that cannot end an attempt.
    """
    ended = []
    for each in injections:
        decision = next((decision for decision in decisions if decision.time >= each.time), None)
        is_late = decision is not None and decision.time >= time_of_next(each, injections)
        may_end = _may_end_attempt(each.fault) or not only_expected
        ended.append((each, decision if ends_attempt(each.fault) or (may_end and not is_late) else None))
    return ended


def time_of_next(injection: FaultInjection, injections: Iterable[FaultInjection]) -> float:
    """Return the time of the first later injection; infinity without one."""
    return min((other.time for other in injections if other.time > injection.time), default=float("inf"))


def replaceable_nodes(injections: Iterable[FaultInjection], instances: Iterable[InstanceRecord]) -> set[str]:
    """Return the nodes that may be replaced: lost and slow ones, and those that need a second repair."""
    lost, repaired = set[str](), Counter[str]()
    for injection in injections:
        fault = parse_fault(injection.fault)
        if isinstance(fault, _REPLACED_NODES) or (isinstance(fault, GpuFault) and fault.needs_replacement):
            lost.update(injection.nodes)
        elif isinstance(fault, GpuFault):
            repaired.update(injection.nodes)
    lost |= {node for node, count in repaired.items() if count > 1}
    return lost | {instance.id for instance in instances if instance.interrupted_time is not None}
