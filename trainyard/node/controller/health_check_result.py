"""Evaluation of a health check and the decision that follows. Without side effects, so that every rule has a test.

A node is replaced only after two failed health checks, and never for a fault of a peer or a fault of all nodes.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_high

from trainyard.models.events import HealthCheckEvent
from trainyard.models.health_check import (
    HealthCheckDecision,
    HealthCheckResult,
    NodeFault,
    NodeMeasurements,
    NodeResult,
)
from trainyard.models.manifest import Manifest, WorkerGroup

# Healthy GPUs of one model differ by a few percent.
SLOW_FACTOR = 1.3
VERSIONS = ("driver", "cuda", "nccl", "torch")
# Faults between nodes with which the job may start if a second health check finds them too and no single node.
TOLERATED_FAULTS = frozenset({"bandwidth"})


@dataclass(frozen=True)
class Evaluation:
    """Results of the nodes of a health check, and the faults between nodes, which no single node causes."""

    nodes: tuple[NodeResult, ...]
    faults: tuple[NodeFault, ...] = ()

    @property
    def faulty_nodes(self) -> dict[str, tuple[NodeFault, ...]]:
        """Return instance id -> faults of each node that has any."""
        return {result.node: result.faults for result in self.nodes if result.faults}


@dataclass(frozen=True)
class Decision:
    """Decision on a health check, and its reason."""

    decision: HealthCheckDecision
    reason: str
    unhealthy_nodes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def evaluate(
    nodes: Sequence[str],
    events: Mapping[str, HealthCheckEvent],
    manifest: Manifest,
    processes: int,
    others: Mapping[str, NodeMeasurements],
    overdue_minutes: float | None,
    slow_nodes: Collection[str] = (),
) -> Evaluation:
    """Evaluate the reports of all nodes.

    `events`: node -> its report. `processes`: processes per node. `others`: measurements of other nodes, which
    passed an earlier health check. `overdue_minutes`: the time in which all nodes should have reported; None if the
    health check was stopped earlier. `slow_nodes`: nodes with a rank that was slower than the others.
    """
    groups = {group.name: group for group in manifest.groups}
    software_location = manifest.job.container or "the image"
    faults: dict[str, list[NodeFault]] = {}
    for node in nodes:
        event = events.get(node)
        if event is None:
            no_report = NodeFault(kind="no_report", text=f"no report within {overdue_minutes or 0:g} minutes")
            faults[node] = [no_report] if overdue_minutes is not None else []
        else:
            group, uses_gpus = groups[event.group], groups[event.group].gpus and manifest.node.use_gpus
            hardware = _evaluate_hardware(event.measurements, group, processes, software_location) if uses_gpus else ()
            faults[node] = [*hardware, *event.faults]
    for node, text in _find_slow_nodes(nodes, events, groups, manifest, slow_nodes):
        if not any(fault.kind == "matmul" for fault in faults[node]):
            faults[node].append(NodeFault(kind="matmul", text=text))
    for node, text in _find_unreachable_nodes(nodes, events):
        faults[node] = faults[node] or [NodeFault(kind="peers", text=text)]
    shared_faults = list(_evaluate_versions(nodes, events, others, faults))
    if not any(faults.values()) and set(nodes) <= events.keys():
        shared_faults += _evaluate_fabric(nodes, events, groups, manifest, processes)
    results = (events[node].node_result if node in events else NodeResult(node=node) for node in nodes)
    node_results = (result.model_copy(update={"faults": tuple(faults[result.node])}) for result in results)
    return Evaluation(tuple(node_results), tuple(shared_faults))


def _evaluate_hardware(
    values: NodeMeasurements, group: WorkerGroup, processes: int, software_location: str
) -> Iterator[NodeFault]:
    """Compare a GPU node with its instance type. A value that was not measured is no fault here.

    `software_location`: container image or machine image with NCCL and its plugin.
    """
    hardware, instance_type = group.hardware, group.instance_type
    if values.driver is not None and values.gpus != group.gpus:
        yield NodeFault(kind="gpus", text=f"{values.gpus} usable GPUs, {instance_type} has {group.gpus}")
    if hardware.gpus is not None:
        for name in values.gpu_names:
            if not is_gpu_model(name, hardware.gpus.model):
                yield NodeFault(kind="gpus", text=f"a GPU is {name!r}, {instance_type} has {hardware.gpus.model}")
    if group.efa_interfaces:
        yield from _evaluate_network(values, group, software_location)
    if (
        hardware.min_matmul_tflops
        and values.matmul_tflops is not None
        and values.matmul_tflops < hardware.min_matmul_tflops
    ):
        text = f"the slowest GPU multiplies matrices at {values.matmul_tflops:g} TFLOP/s, the minimum is"
        yield NodeFault(kind="matmul", text=f"{text} {hardware.min_matmul_tflops:g}")
    minimum = hardware.min_nvlink_gbs if processes == group.gpus else None  # the minimum is for all GPUs of the node
    if minimum is not None and values.nvlink_gbs is not None and values.nvlink_gbs < minimum:
        rate = f"{values.nvlink_gbs:g} GB/s of bus bandwidth"
        yield NodeFault(kind="nvlink", text=f"an all-reduce within the node has {rate}, the minimum is {minimum:g}")


def _find_slow_nodes(
    nodes: Sequence[str],
    events: Mapping[str, HealthCheckEvent],
    groups: Mapping[str, WorkerGroup],
    manifest: Manifest,
    slow_nodes: Collection[str],
) -> Iterator[tuple[str, str]]:
    """Yield (node, text) of nodes with a GPU that is much slower than those of the other nodes of their type.

    Nodes without GPUs are compared only if one of their ranks was slow: other processes may delay a CPU.
    """
    rates: dict[str, dict[str, float]] = {}
    for node in nodes:
        event = events.get(node)
        if event is not None and event.measurements.matmul_tflops is not None:
            rates.setdefault(groups[event.group].instance_type, {})[node] = event.measurements.matmul_tflops
    for instance_type, measured in rates.items():
        usual = median_high(measured.values())
        for node, rate in measured.items():
            has_gpus = groups[events[node].group].gpus > 0 and manifest.node.use_gpus
            if rate * SLOW_FACTOR < usual and (has_gpus or node in slow_nodes):
                device = "the slowest GPU" if has_gpus else "the slowest process"
                text = f"{device} multiplies matrices at {rate:g} TFLOP/s, other {instance_type} nodes at"
                yield node, f"{text} {usual:g}"


def _find_unreachable_nodes(nodes: Sequence[str], events: Mapping[str, HealthCheckEvent]) -> Iterator[tuple[str, str]]:
    """Yield (node, text) of nodes that did not arrive at most of the others, if these reached each other.

    Such a node reports that all others are missing. Without a majority, the fault is between the nodes.
    """
    waiting = Counter(peer for node in nodes if node in events for peer in events[node].missing_peers)
    others = len(nodes) - 1
    unreachable = [node for node in nodes if 2 * waiting[node] > others]
    if 2 * len(unreachable) < len(nodes):
        for node in unreachable:
            yield node, f"{waiting[node]} of {others} other nodes could not reach it"


def _evaluate_network(values: NodeMeasurements, group: WorkerGroup, software_location: str) -> Iterator[NodeFault]:
    """Check that NCCL uses EFA with all devices of the node."""
    if values.nvlink_gbs is None and values.network_gbs is None and values.network is None:
        return  # NCCL was not needed, or not reached
    if values.provider is None:
        text = f"NCCL uses {values.network or 'an unnamed network'} and not the OFI plugin: it falls back to TCP"
        yield NodeFault(kind="network", text=f"{text} (is /opt/amazon/ofi-nccl in {software_location}?)")
    elif values.provider != "efa":
        text = f"the OFI plugin selected libfabric's provider {values.provider}, not efa: it falls back to TCP"
        yield NodeFault(kind="network", text=text)
    elif values.efa_devices is None:
        text = "the OFI plugin does not log how many EFA devices it uses: version 1.5 or newer is needed"
        yield NodeFault(kind="network", text=text)
    elif values.efa_devices != group.efa_interfaces:
        text = f"the OFI plugin uses {values.efa_devices} EFA devices, {group.instance_type} has {group.efa_interfaces}"
        yield NodeFault(kind="network", text=text)


def is_gpu_model(name: str, model: str) -> bool:
    """Return whether a GPU name contains the catalog's model as whole words: an A10G is not an A10."""
    parts, expected = (re.split(r"[\s_-]+", text.lower()) for text in (name, model))
    return any(parts[start : start + len(expected)] == expected for start in range(len(parts)))


def _evaluate_versions(
    nodes: Sequence[str],
    events: Mapping[str, HealthCheckEvent],
    others: Mapping[str, NodeMeasurements],
    faults: dict[str, list[NodeFault]],
) -> Iterator[NodeFault]:
    """Check that versions are equal on all nodes.

    A node that differs from the majority gets a fault in `faults`. Without a majority, it yields a fault between nodes.
    """
    all_values = {**others, **{node: events[node].measurements for node in nodes if node in events}}
    for component in VERSIONS:
        versions = {
            node: version for node, values in all_values.items() if (version := getattr(values, component)) is not None
        }
        counts = Counter(versions.values()).most_common()
        if len(counts) < 2:
            continue
        usual, count = counts[0]
        if 2 * count > len(versions):
            for node in nodes:
                if versions.get(node, usual) != usual:
                    text = f"{component} {versions[node]}, but {count} of {len(versions)} nodes have {usual}"
                    faults[node].append(NodeFault(kind="versions", text=text))
        else:
            each = ", ".join(f"{node} {versions[node]}" for node in sorted(versions))
            yield NodeFault(kind="versions", text=f"{component} differs and no version has a majority: {each}")


def _evaluate_fabric(
    nodes: Sequence[str],
    events: Mapping[str, HealthCheckEvent],
    groups: Mapping[str, WorkerGroup],
    manifest: Manifest,
    processes: int,
) -> Iterator[NodeFault]:
    """Find faults between nodes that have no faults themselves."""
    reports = [events[node] for node in nodes]
    if incomplete := [report.incomplete_stage for report in reports if report.incomplete_stage]:
        text = f"{'; '.join(sorted(set(incomplete)))} did not complete on {len(incomplete)} of {len(nodes)} nodes"
        yield NodeFault(kind="fabric", text=f"{text}, and no single node failed (security group, subnet, EFA?)")
    elif missing := {report.instance: report.missing_peers for report in reports if report.missing_peers}:
        waits = "; ".join(f"{node} waited for {', '.join(names)}" for node, names in sorted(missing.items()))
        yield NodeFault(kind="fabric", text=f"timeout, healthy nodes could not reach each other: {waits}")
    if not manifest.node.use_gpus:
        return
    minimums = [
        minimum
        for report in reports
        if (group := groups[report.group]).efa_interfaces and processes == group.gpus
        if (minimum := group.hardware.min_network_gbs) is not None
    ]
    rates = [report.measurements.network_gbs for report in reports if report.measurements.network_gbs is not None]
    if minimums and rates and min(rates) < min(minimums):
        text = (
            f"an all-reduce over all nodes has {min(rates):g} GB/s of bus bandwidth, the minimum is {min(minimums):g}"
        )
        yield NodeFault(kind="bandwidth", text=f"{text}; EFA is in use on every node")


def decide(evaluation: Evaluation, previous: HealthCheckResult | None, replaced: int, node_count: int) -> Decision:
    """Decide on a health check.

    `previous`: the health check directly before, if it did not pass. `replaced`: number of nodes marked unhealthy
    since the last health check that passed. `node_count`: nodes of the run.
    """
    faulty_nodes, earlier = evaluation.faulty_nodes, previous.faulty_nodes if previous else {}
    if not faulty_nodes and not evaluation.faults:
        return Decision("passed", _healthy_text(len(evaluation.nodes)))
    if fault := _find_common_fault(evaluation, previous):
        text = f"all {len(evaluation.nodes)} nodes failed twice the same way, so it is not a fault of one node: {fault}"
        return Decision("failed", text)
    if failed_twice := {node: faults for node, faults in faulty_nodes.items() if node in earlier}:
        text = "; ".join(f"{node} failed twice: {_join(faults)}" for node, faults in sorted(failed_twice.items()))
        if replaced + len(failed_twice) > node_count:
            return Decision("failed", f"{text}. {node_count} replacements failed too, so the nodes are not the cause")
        return Decision("replace", f"{text}. Marked unhealthy: the group replaces it", tuple(sorted(failed_twice)))
    kinds = {fault.kind for fault in previous.faults} if previous else set()
    repeated = [fault for fault in evaluation.faults if fault.kind in kinds]
    if repeated and not faulty_nodes:
        if all(fault.kind in TOLERATED_FAULTS for fault in evaluation.faults):
            text = _join(evaluation.faults)
            return Decision("passed", f"{_healthy_text(len(evaluation.nodes))}, but: {text}", notes=(text,))
        return Decision("failed", f"failed twice the same way, and no single node failed: {_join(repeated)}")
    texts = [f"{node}: {_join(faults)}" for node, faults in sorted(faulty_nodes.items())]
    text = "; ".join([*texts, *([_join(evaluation.faults)] if evaluation.faults else [])])
    return Decision("repeat", f"{text}. The health check is repeated")


def _find_common_fault(evaluation: Evaluation, previous: HealthCheckResult | None) -> str:
    """Return the text of a fault that every node has now and had in the previous health check; empty if there is none.

    Only for runs of several nodes.
    """
    nodes = evaluation.nodes
    if previous is None or len(nodes) < 2 or any(previous.find_node(result.node) is None for result in nodes):
        return ""
    kinds = [{fault.kind for fault in result.faults} for result in (*nodes, *previous.nodes)]
    common = set.intersection(*kinds)
    return next((fault.text for fault in nodes[0].faults if fault.kind in common), "")


def _join(faults: Sequence[NodeFault]) -> str:
    return ", ".join(fault.text for fault in faults)


def _healthy_text(nodes: int) -> str:
    return "the node is healthy" if nodes == 1 else f"all {nodes} nodes are healthy"
