"""What the controller concludes from a check."""

from typing import Any

import pytest

from tests.clusters import stamp
from tests.manifests import MANIFEST, WELL
from trainyard.models.events import VerificationEvent
from trainyard.models.health_check import Fault, Measured, Verification
from trainyard.models.manifest import Gpus, Hardware, Manifest
from trainyard.node.controller.health_check_result import Decision, Judgement, decide, is_model, judge

NODES = ("i-1", "i-2", "i-3")
A100 = Hardware(
    gpus=Gpus(model="A100", driver="open", nvswitch=True), matmul_tflops=156.0, nvlink_gbs=200.0, network_gbs=50.0
)
P4D = MANIFEST.model_copy(
    update={
        "groups": (
            MANIFEST.groups[0].model_copy(
                update={
                    "instance_type": "p4d.24xlarge",
                    "gpus": 8,
                    "efa_interfaces": 4,
                    "hardware": A100,
                    "processes_per_node": 8,
                }
            ),
        )
    }
)


def event(node: str, **changes: Any) -> VerificationEvent:
    """A node's word: `changes` of what it measured, or of the event itself."""
    own: dict[str, Any] = {name: changes.pop(name) for name in ("faults", "absent", "stuck") if name in changes}
    seen = WELL.model_copy(update=changes)
    told = {"run": "r", "check": 1, "group": "workers", "measured": seen, **own}
    return VerificationEvent.model_validate({**stamp(node, "worker"), **told})


def judged(
    *events: VerificationEvent,
    manifest: Manifest = P4D,
    processes: int = 8,
    known: dict[str, Measured] | None = None,
    overdue: float | None = 3.0,
) -> Judgement:
    """Three nodes, all of them well but for those given."""
    told = {node: event(node) for node in NODES} | {one.instance: one for one in events}
    return judge(NODES, told, manifest, processes, known or {}, overdue)


def kinds(found: Judgement) -> dict[str, list[str]]:
    return {node: [fault.kind for fault in faults] for node, faults in found.blamed.items()}


def test_a_healthy_cluster_has_no_fault() -> None:
    assert (judged().blamed, judged().faults) == ({}, ())


@pytest.mark.parametrize(
    ("changes", "kind", "text"),
    [
        ({"gpus": 7}, "gpus", "7 usable GPUs, p4d.24xlarge has 8"),
        ({"gpu_names": ("NVIDIA A10G",)}, "gpus", "a GPU is 'NVIDIA A10G', p4d.24xlarge has A100"),
        ({"efa_devices": 1}, "network", "the OFI plugin uses 1 EFA devices, p4d.24xlarge has 4"),
        (
            {"network": "Socket", "provider": None},
            "network",
            "NCCL uses Socket and not the OFI plugin: a fall-back to TCP",
        ),
        ({"provider": "tcp"}, "network", "chose libfabric's provider tcp, not efa: a fall-back to TCP"),
        ({"efa_devices": None}, "network", "did not say how many EFA devices"),
        ({"matmul_tflops": 100.0}, "matmul", "at 100 TFLOP/s, the floor is 156"),
        ({"nvlink_gbs": 199.0}, "nvlink", "199 GB/s of bus bandwidth, the floor is 200"),
        ({"driver": "550.1"}, "versions", "driver 550.1, where 2 of 3 nodes have 580.126.09"),
        ({"torch": "2.14.0"}, "versions", "torch 2.14.0, where 2 of 3 nodes have 2.15.0"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_each_fault_of_a_node_is_seen_and_told(changes: dict[str, Any], kind: str, text: str) -> None:
    found = judged(event("i-2", **changes))
    assert kinds(found) == {"i-2": [kind]}
    assert text in found.blamed["i-2"][0].text


def test_the_image_that_lacks_the_plugin_is_named() -> None:
    contained = P4D.model_copy(update={"job": P4D.job.model_copy(update={"container": "me/mine:1"})})
    found = judged(event("i-2", network="Socket", provider=None), manifest=contained)
    assert "is /opt/amazon/ofi-nccl in me/mine:1?" in found.blamed["i-2"][0].text


def test_a_node_that_said_nothing_is_blamed_when_its_time_is_over() -> None:
    told = {node: event(node) for node in NODES[:2]}
    late = judge(NODES, told, P4D, 8, {}, 3.0)
    assert late.blamed == {"i-3": (Fault(kind="silent", text="no report within 3 minutes"),)}
    assert judge(NODES, told, P4D, 8, {}, None).blamed == {}


def test_a_peers_absence_is_the_peers_fault() -> None:
    hung = event("i-3", faults=(Fault(kind="hung", text="process 0 did not end: multiply matrices"),))
    found = judged(event("i-1", absent=("i-3",)), event("i-2", absent=("i-3",)), hung)
    assert kinds(found) == {"i-3": ["hung"]}
    assert found.faults == ()


def test_what_nobody_ended_is_a_fault_of_the_whole() -> None:
    found = judged(*(event(node, stuck="all-reduce over all nodes", network_gbs=None) for node in NODES))
    assert found.blamed == {}
    (fault,) = found.faults
    assert fault.text.startswith("all-reduce over all nodes did not end, on 3 of 3 nodes, and no node is the culprit")


def test_a_slow_network_by_efa_is_nobodys_fault() -> None:
    found = judged(*(event(node, network_gbs=20.3) for node in NODES))
    assert found.blamed == {}
    (fault,) = found.faults
    assert (fault.kind, fault.text) == (
        "bandwidth",
        "an all-reduce over all nodes has 20.3 GB/s of bus bandwidth, the floor is 50; EFA is in use on every node",
    )


def test_floors_are_those_of_all_gpus_of_a_node() -> None:
    found = judged(event("i-1", nvlink_gbs=100.0, network_gbs=10.0), processes=4)
    assert (found.blamed, found.faults) == ({}, ())


def test_on_cpus_nothing_of_the_type_is_asked_for() -> None:
    node = P4D.node.model_copy(update={"accelerators": False})
    slow = {"gpus": 0, "provider": None, "network": "gloo", "matmul_tflops": 0.1, "network_gbs": 0.1, "driver": None}
    found = judged(*(event(node, **slow) for node in NODES), manifest=P4D.model_copy(update={"node": node}))
    assert (found.blamed, found.faults) == ({}, ())


def test_versions_without_a_majority_are_nobodys_fault() -> None:
    told = {"i-1": event("i-1", driver="570.1"), "i-2": event("i-2", driver="580.1")}
    found = judge(("i-1", "i-2"), told, P4D, 8, {}, 3.0)
    assert found.blamed == {}
    assert [fault.text for fault in found.faults] == [
        "driver differs and no version has a majority: i-1 570.1, i-2 580.1"
    ]


def test_a_new_node_is_held_against_those_that_run() -> None:
    known = {"i-8": WELL, "i-9": WELL}
    found = judge(("i-1",), {"i-1": event("i-1", nccl="2.27.1")}, P4D, 8, known, 3.0)
    assert kinds(found) == {"i-1": ["versions"]}


@pytest.mark.parametrize(
    ("name", "model", "same"),
    [
        ("NVIDIA A100-SXM4-40GB", "A100", True),
        ("NVIDIA A10G", "A10G", True),
        ("NVIDIA A100-SXM4-40GB", "A10", False),
        ("NVIDIA L40S", "L4", False),
        ("NVIDIA H100 80GB HBM3", "H100", True),
        ("Tesla V100-SXM2-16GB", "V100", True),
        ("NVIDIA B300 SXM6 AC", "B200", False),
    ],
)
def test_a_gpu_is_known_by_whole_words(name: str, model: str, same: bool) -> None:
    assert is_model(name, model) is same


def after(found: Judgement, number: int = 1, verdict: str = "repeat") -> Verification:
    """As the check is kept that a next one is seen beside."""
    told = {"number": number, "ended": 1.0, "seconds": 1.0, "nodes": found.nodes, "faults": found.faults}
    return Verification.model_validate({**told, "verdict": verdict, "reason": "r"})


def test_a_check_without_faults_starts_the_job() -> None:
    assert decide(judged(), None, 0, 3) == Decision("passed", "all 3 nodes are as they should be")


def test_no_node_goes_for_what_one_check_saw() -> None:
    found = decide(judged(event("i-2", gpus=7)), None, 0, 3)
    assert (found.verdict, found.unhealthy) == ("repeat", ())
    assert found.reason == "i-2: 7 usable GPUs, p4d.24xlarge has 8. Checked once more"


def test_a_node_that_fails_twice_is_named_and_goes() -> None:
    before = after(judged(event("i-2", gpus=7)))
    found = decide(judged(event("i-2", efa_devices=1), event("i-3", gpus=7)), before, 0, 3)
    assert (found.verdict, found.unhealthy) == ("replace", ("i-2",))
    assert found.reason.startswith("i-2 failed twice: the OFI plugin uses 1 EFA devices")


def test_another_node_that_fails_is_checked_again() -> None:
    before = after(judged(event("i-2", gpus=7)))
    assert decide(judged(event("i-3", gpus=7)), before, 0, 3).verdict == "repeat"


def test_what_all_nodes_have_twice_is_not_the_nodes() -> None:
    everywhere = judged(*(event(node, network="Socket", provider=None) for node in NODES))
    assert decide(everywhere, None, 0, 3).verdict == "repeat"
    found = decide(everywhere, after(everywhere), 0, 3)
    assert (found.verdict, found.unhealthy) == ("failed", ())
    assert found.reason.startswith("all 3 nodes failed twice the same way, so it is not one node: NCCL uses Socket")


def test_a_run_of_one_node_replaces_it_once() -> None:
    lone = judge(("i-1",), {"i-1": event("i-1", gpus=7)}, P4D, 8, {}, 3.0)
    assert decide(lone, after(lone), 0, 1).verdict == "replace"
    assert decide(lone, after(lone), 1, 1).verdict == "failed"


def test_a_slow_network_is_borne_when_a_second_check_sees_it_too() -> None:
    slow = judged(*(event(node, network_gbs=20.3) for node in NODES))
    assert decide(slow, None, 0, 3).verdict == "repeat"
    found = decide(slow, after(slow), 0, 3)
    assert found.verdict == "passed"
    assert found.notes == (slow.faults[0].text,)


def test_what_nobody_ended_twice_ends_the_run() -> None:
    stuck = judged(*(event(node, stuck="all-reduce over all nodes", network_gbs=None) for node in NODES))
    found = decide(stuck, after(stuck), 0, 3)
    assert found.verdict == "failed"
    assert found.reason.startswith("twice the same, and no node is the culprit: all-reduce over all nodes")
