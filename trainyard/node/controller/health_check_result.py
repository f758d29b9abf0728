"""What the controller concludes from a check: pure, so that each conclusion has a test.

No node is given up for what a single check saw, and none for what is a peer's fault or everybody's.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from trainyard.models.events import VerificationEvent
from trainyard.models.health_check import CheckedNode, Fault, Measured, Verdict, Verification
from trainyard.models.manifest import Manifest, WorkerGroup

VERSIONS = ("driver", "cuda", "nccl", "torch")
# A fault of the whole with which the job may start, when a second check has seen it too and no node is the culprit.
BORNE = frozenset({"bandwidth"})


@dataclass(frozen=True)
class Judgement:
    """A check's nodes, each with the faults of its own, and the faults that are nobody's."""

    nodes: tuple[CheckedNode, ...]
    faults: tuple[Fault, ...] = ()

    @property
    def blamed(self) -> dict[str, tuple[Fault, ...]]:
        return {one.node: one.faults for one in self.nodes if one.faults}


@dataclass(frozen=True)
class Decision:
    """What follows from a check, and why."""

    verdict: Verdict
    reason: str
    unhealthy: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def judge(
    nodes: Sequence[str],
    told: Mapping[str, VerificationEvent],
    manifest: Manifest,
    processes: int,
    known: Mapping[str, Measured],
    overdue: float | None,
) -> Judgement:
    """`told`: what nodes reported. `overdue`: the minutes within which all should have; none where the check was cut
    before. `known`: what nodes outside this check measured in an earlier one that passed."""
    groups = {group.name: group for group in manifest.groups}
    where = manifest.job.container or "the image"
    found: dict[str, list[Fault]] = {}
    for node in nodes:
        event = told.get(node)
        if event is None:
            silent = Fault(kind="silent", text=f"no report within {overdue or 0:g} minutes")
            found[node] = [silent] if overdue is not None else []
        else:
            group = groups[event.group]
            own = (
                _hardware(event.measured, group, processes, where) if group.gpus and manifest.node.accelerators else ()
            )
            found[node] = [*own, *event.faults]
    faults = list(_versions(nodes, told, known, found))
    if not any(found.values()) and set(nodes) <= told.keys():
        faults += _together(nodes, told, groups, manifest, processes)
    checked = (told[node].checked if node in told else CheckedNode(node=node) for node in nodes)
    return Judgement(tuple(one.model_copy(update={"faults": tuple(found[one.node])}) for one in checked), tuple(faults))


def _hardware(seen: Measured, group: WorkerGroup, processes: int, where: str) -> Iterator[Fault]:
    """A GPU node against its type. What it did not come to measure is not held against it here.

    `where`: what NCCL and its plugin are in.
    """
    hardware, kind = group.hardware, group.instance_type
    if seen.driver is not None and seen.gpus != group.gpus:
        yield Fault(kind="gpus", text=f"{seen.gpus} usable GPUs, {kind} has {group.gpus}")
    if hardware.gpus is not None:
        for name in seen.gpu_names:
            if not is_model(name, hardware.gpus.model):
                yield Fault(kind="gpus", text=f"a GPU is {name!r}, {kind} has {hardware.gpus.model}")
    if group.efa_interfaces:
        yield from _plugin(seen, group, where)
    if hardware.matmul_tflops and seen.matmul_tflops is not None and seen.matmul_tflops < hardware.matmul_tflops:
        text = f"the slowest GPU multiplies matrices at {seen.matmul_tflops:g} TFLOP/s, the floor is"
        yield Fault(kind="matmul", text=f"{text} {hardware.matmul_tflops:g}")
    floor = hardware.nvlink_gbs if processes == group.gpus else None  # it is that of all GPUs together
    if floor is not None and seen.nvlink_gbs is not None and seen.nvlink_gbs < floor:
        text = f"an all-reduce within the node has {seen.nvlink_gbs:g} GB/s of bus bandwidth, the floor is {floor:g}"
        yield Fault(kind="nvlink", text=text)


def _plugin(seen: Measured, group: WorkerGroup, where: str) -> Iterator[Fault]:
    """EFA in use, by all of its devices."""
    if seen.nvlink_gbs is None and seen.network_gbs is None and seen.network is None:
        return  # NCCL was not needed, or not come to
    if seen.provider is None:
        what = f"NCCL uses {seen.network or 'a network that it does not name'} and not the OFI plugin"
        yield Fault(kind="network", text=f"{what}: a fall-back to TCP (is /opt/amazon/ofi-nccl in {where}?)")
    elif seen.provider != "efa":
        text = f"the OFI plugin chose libfabric's provider {seen.provider}, not efa: a fall-back to TCP"
        yield Fault(kind="network", text=text)
    elif seen.efa_devices is None:
        yield Fault(kind="network", text="the OFI plugin did not say how many EFA devices it uses: 1.5 or newer does")
    elif seen.efa_devices != group.efa_interfaces:
        text = f"the OFI plugin uses {seen.efa_devices} EFA devices, {group.instance_type} has {group.efa_interfaces}"
        yield Fault(kind="network", text=text)


def is_model(name: str, model: str) -> bool:
    """Whether a GPU's name is of the catalog's model: by whole words, for an A10G is no A10 and an L40S no L4."""
    words, wanted = (re.split(r"[\s_-]+", text.lower()) for text in (name, model))
    return any(words[start : start + len(wanted)] == wanted for start in range(len(words)))


def _versions(
    nodes: Sequence[str],
    told: Mapping[str, VerificationEvent],
    known: Mapping[str, Measured],
    found: dict[str, list[Fault]],
) -> Iterator[Fault]:
    """Versions equal everywhere: who differs from most others has a fault, added to `found`; without a majority it is
    nobody's."""
    everyone = {**known, **{node: told[node].measured for node in nodes if node in told}}
    for what in VERSIONS:
        have = {node: value for node, seen in everyone.items() if (value := getattr(seen, what)) is not None}
        counts = Counter(have.values()).most_common()
        if len(counts) < 2:
            continue
        usual, often = counts[0]
        if 2 * often > len(have):
            for node in nodes:
                if have.get(node, usual) != usual:
                    text = f"{what} {have[node]}, where {often} of {len(have)} nodes have {usual}"
                    found[node].append(Fault(kind="versions", text=text))
        else:
            each = ", ".join(f"{node} {have[node]}" for node in sorted(have))
            yield Fault(kind="versions", text=f"{what} differs and no version has a majority: {each}")


def _together(
    nodes: Sequence[str],
    told: Mapping[str, VerificationEvent],
    groups: Mapping[str, WorkerGroup],
    manifest: Manifest,
    processes: int,
) -> Iterator[Fault]:
    """What went wrong between nodes of which each is well."""
    events = [told[node] for node in nodes]
    if stuck := sorted({one.stuck for one in events if one.stuck}):
        text = (
            f"{'; '.join(stuck)} did not end, on {sum(one.stuck is not None for one in events)} of {len(nodes)} nodes"
        )
        yield Fault(kind="fabric", text=f"{text}, and no node is the culprit (security group, subnet, EFA?)")
    elif absent := {one.instance: one.absent for one in events if one.absent}:
        waits = "; ".join(f"{node} for {', '.join(names)}" for node, names in sorted(absent.items()))
        yield Fault(kind="fabric", text=f"nodes that report well waited for each other in vain: {waits}")
    if not manifest.node.accelerators:
        return
    floors = [
        floor
        for one in events
        if (group := groups[one.group]).efa_interfaces and processes == group.gpus
        if (floor := group.hardware.network_gbs) is not None
    ]
    least = min((one.measured.network_gbs for one in events if one.measured.network_gbs is not None), default=None)
    if floors and least is not None and least < min(floors):
        text = f"an all-reduce over all nodes has {least:g} GB/s of bus bandwidth, the floor is {min(floors):g}"
        yield Fault(kind="bandwidth", text=f"{text}; EFA is in use on every node")


def decide(now: Judgement, before: Verification | None, replaced: int, wanted: int) -> Decision:
    """What follows. `before`: the check right before this one, where it did not pass. `replaced`: nodes marked
    unhealthy so far; `wanted`: nodes of the run."""
    blamed, earlier = now.blamed, before.blamed if before else {}
    if not blamed and not now.faults:
        return Decision("passed", f"{_count(len(now.nodes))} as they should be")
    twice = {node: faults for node, faults in blamed.items() if node in earlier}
    if same := _everywhere(now, before):
        return Decision(
            "failed", f"all {len(now.nodes)} nodes failed twice the same way, so it is not one node: {same}"
        )
    if twice:
        told = "; ".join(f"{node} failed twice: {_texts(faults)}" for node, faults in sorted(twice.items()))
        if replaced + len(twice) > wanted:
            return Decision("failed", f"{told}. As many nodes as the run has were replaced: it is not the nodes")
        return Decision("replace", f"{told}. Marked unhealthy: its group replaces it", tuple(sorted(twice)))
    kinds = {fault.kind for fault in before.faults} if before else set()
    again = [fault for fault in now.faults if fault.kind in kinds]
    if again and not blamed:
        if all(fault.kind in BORNE for fault in now.faults):
            text = _texts(now.faults)
            return Decision("passed", f"{_count(len(now.nodes))} well, but: {text}", notes=(text,))
        return Decision("failed", f"twice the same, and no node is the culprit: {_texts(again)}")
    told = "; ".join([*(f"{node}: {_texts(faults)}" for node, faults in sorted(blamed.items())), _texts(now.faults)])
    return Decision("repeat", f"{told.rstrip('; ')}. Checked once more")


def _everywhere(now: Judgement, before: Verification | None) -> str:
    """The fault that every node has, and had in the check before, with several nodes; empty where there is none."""
    if before is None or len(now.nodes) < 2 or any(before.node(one.node) is None for one in now.nodes):
        return ""
    kinds = [{fault.kind for fault in one.faults} for one in (*now.nodes, *before.nodes)]
    common = set.intersection(*kinds)
    return next((fault.text for fault in now.nodes[0].faults if fault.kind in common), "")


def _texts(faults: Sequence[Fault]) -> str:
    return ", ".join(fault.text for fault in faults)


def _count(nodes: int) -> str:
    return "the node is" if nodes == 1 else f"all {nodes} nodes are"
