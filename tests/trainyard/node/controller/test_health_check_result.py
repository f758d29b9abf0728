"""Evaluation of a health check and the decision of the controller."""

from typing import Any

import pytest

from tests.clusters import event_fields
from tests.manifests import HEALTHY_MEASUREMENTS, MANIFEST
from trainyard.models.events import HealthCheckEvent
from trainyard.models.health_check import HealthCheckResult, NodeFault, NodeMeasurements
from trainyard.models.manifest import Gpus, Hardware, Manifest
from trainyard.node.controller.health_check_result import Decision, Evaluation, decide, evaluate, is_gpu_model

NODES = ("i-1", "i-2", "i-3")
A100 = Hardware(
    gpus=Gpus(model="A100", driver="open", nvswitch=True),
    min_matmul_tflops=156.0,
    min_nvlink_gbs=200.0,
    min_network_gbs=50.0,
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


def event(node: str, **changes: Any) -> HealthCheckEvent:
    """Event of a healthy node with changed measurements or changed fields."""
    fields: dict[str, Any] = {
        name: changes.pop(name) for name in ("faults", "missing_peers", "incomplete_stage") if name in changes
    }
    measurements = HEALTHY_MEASUREMENTS.model_copy(update=changes)
    fields |= {"run": "r", "number": 1, "group": "workers", "measurements": measurements}
    return HealthCheckEvent.model_validate({**event_fields(node, "worker"), **fields})


def evaluate_three_nodes(
    *events: HealthCheckEvent,
    manifest: Manifest = P4D,
    processes: int = 8,
    others: dict[str, NodeMeasurements] | None = None,
    overdue_minutes: float | None = 3.0,
) -> Evaluation:
    """Evaluate three nodes: healthy, except those of `events`."""
    reports = {node: event(node) for node in NODES} | {report.instance: report for report in events}
    return evaluate(NODES, reports, manifest, processes, others or {}, overdue_minutes)


def kinds(result: Evaluation) -> dict[str, list[str]]:
    return {node: [fault.kind for fault in faults] for node, faults in result.faulty_nodes.items()}


def test_node_with_a_slow_gpu_has_a_fault() -> None:
    usual = HEALTHY_MEASUREMENTS.matmul_tflops
    assert usual is not None
    assert kinds(evaluate_three_nodes(event("i-2", matmul_tflops=usual / 1.25))) == {}
    assert kinds(evaluate_three_nodes(event("i-2", matmul_tflops=usual / 1.35))) == {"i-2": ["matmul"]}


def test_healthy_nodes_have_no_faults() -> None:
    assert (evaluate_three_nodes().faulty_nodes, evaluate_three_nodes().faults) == ({}, ())


@pytest.mark.parametrize(
    ("changes", "kind", "text"),
    [
        ({"gpus": 7}, "gpus", "7 usable GPUs, p4d.24xlarge has 8"),
        ({"gpu_names": ("NVIDIA A10G",)}, "gpus", "a GPU is 'NVIDIA A10G', p4d.24xlarge has A100"),
        ({"efa_devices": 1}, "network", "the OFI plugin uses 1 EFA devices, p4d.24xlarge has 4"),
        (
            {"network": "Socket", "provider": None},
            "network",
            "NCCL uses Socket and not the OFI plugin: it falls back to TCP",
        ),
        ({"provider": "tcp"}, "network", "selected libfabric's provider tcp, not efa: it falls back to TCP"),
        ({"efa_devices": None}, "network", "does not log how many EFA devices"),
        ({"matmul_tflops": 100.0}, "matmul", "at 100 TFLOP/s, the minimum is 156"),
        ({"nvlink_gbs": 199.0}, "nvlink", "199 GB/s of bus bandwidth, the minimum is 200"),
        ({"driver": "550.1"}, "versions", "driver 550.1, but 2 of 3 nodes have 580.126.09"),
        ({"torch": "2.14.0"}, "versions", "torch 2.14.0, but 2 of 3 nodes have 2.15.0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_fault_of_a_node_is_detected(changes: dict[str, Any], kind: str, text: str) -> None:
    result = evaluate_three_nodes(event("i-2", **changes))
    assert kinds(result) == {"i-2": [kind]}
    assert text in result.faulty_nodes["i-2"][0].text


def test_image_without_the_plugin_is_named() -> None:
    with_container = P4D.model_copy(update={"job": P4D.job.model_copy(update={"container": "me/mine:1"})})
    result = evaluate_three_nodes(event("i-2", network="Socket", provider=None), manifest=with_container)
    assert "is /opt/amazon/ofi-nccl in me/mine:1?" in result.faulty_nodes["i-2"][0].text


def test_node_without_report_is_faulty_after_the_timeout() -> None:
    events = {node: event(node) for node in NODES[:2]}
    result = evaluate(NODES, events, P4D, 8, {}, 3.0)
    assert result.faulty_nodes == {"i-3": (NodeFault(kind="no_report", text="no report within 3 minutes"),)}
    assert evaluate(NODES, events, P4D, 8, {}, None).faulty_nodes == {}


def test_missing_peer_is_a_fault_of_the_peer() -> None:
    hung = event("i-3", faults=(NodeFault(kind="hung", text="process 0 did not complete: multiply matrices"),))
    result = evaluate_three_nodes(event("i-1", missing_peers=("i-3",)), event("i-2", missing_peers=("i-3",)), hung)
    assert kinds(result) == {"i-3": ["hung"]}
    assert result.faults == ()


def test_node_that_no_other_node_reaches_has_a_fault() -> None:
    nodes = ("i-1", "i-2", "i-3", "i-4")
    reports = {node: event(node, missing_peers=("i-4",)) for node in nodes[:3]}
    reports["i-4"] = event("i-4", missing_peers=nodes[:3])
    result = evaluate(nodes, reports, P4D, 8, {}, 3.0)
    assert (kinds(result), result.faults) == ({"i-4": ["peers"]}, ())


def test_two_nodes_that_do_not_reach_each_other_have_a_fault_between_them() -> None:
    reports = {"i-1": event("i-1", missing_peers=("i-2",)), "i-2": event("i-2", missing_peers=("i-1",))}
    result = evaluate(("i-1", "i-2"), reports, P4D, 8, {}, 3.0)
    assert (result.faulty_nodes, [fault.kind for fault in result.faults]) == ({}, ["fabric"])


def test_stage_that_no_node_completes_is_a_fabric_fault() -> None:
    result = evaluate_three_nodes(
        *(event(node, incomplete_stage="all-reduce over all nodes", network_gbs=None) for node in NODES)
    )
    assert result.faulty_nodes == {}
    (fault,) = result.faults
    assert fault.text.startswith(
        "all-reduce over all nodes did not complete on 3 of 3 nodes, and no single node failed"
    )


def test_slow_efa_network_is_no_fault_of_a_node() -> None:
    result = evaluate_three_nodes(*(event(node, network_gbs=20.3) for node in NODES))
    assert result.faulty_nodes == {}
    (fault,) = result.faults
    assert (fault.kind, fault.text) == (
        "bandwidth",
        "an all-reduce over all nodes has 20.3 GB/s of bus bandwidth, the minimum is 50; EFA is in use on every node",
    )


def test_minimums_apply_only_if_all_gpus_are_used() -> None:
    result = evaluate_three_nodes(event("i-1", nvlink_gbs=100.0, network_gbs=10.0), processes=4)
    assert (result.faulty_nodes, result.faults) == ({}, ())


def test_cpu_job_has_no_hardware_requirements() -> None:
    node = P4D.node.model_copy(update={"use_gpus": False})
    slow = {"gpus": 0, "provider": None, "network": "gloo", "matmul_tflops": 0.1, "network_gbs": 0.1, "driver": None}
    result = evaluate_three_nodes(
        *(event(node, **slow) for node in NODES), manifest=P4D.model_copy(update={"node": node})
    )
    assert (result.faulty_nodes, result.faults) == ({}, ())


def test_versions_without_majority_are_no_fault_of_a_node() -> None:
    events = {"i-1": event("i-1", driver="570.1"), "i-2": event("i-2", driver="580.1")}
    result = evaluate(("i-1", "i-2"), events, P4D, 8, {}, 3.0)
    assert result.faulty_nodes == {}
    assert [fault.text for fault in result.faults] == [
        "driver differs and no version has a majority: i-1 570.1, i-2 580.1"
    ]


def test_new_node_is_compared_with_running_nodes() -> None:
    others = {"i-8": HEALTHY_MEASUREMENTS, "i-9": HEALTHY_MEASUREMENTS}
    result = evaluate(("i-1",), {"i-1": event("i-1", nccl="2.27.1")}, P4D, 8, others, 3.0)
    assert kinds(result) == {"i-1": ["versions"]}


@pytest.mark.parametrize(
    ("name", "model", "expected"),
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
def test_gpu_model_must_match_completely(name: str, model: str, expected: bool) -> None:
    assert is_gpu_model(name, model) is expected


def create_result(result: Evaluation, number: int = 1, decision: str = "repeat") -> HealthCheckResult:
    """Result of a health check, as the next health check reads it."""
    events = {"number": number, "ended_at": 1.0, "seconds": 1.0, "nodes": result.nodes, "faults": result.faults}
    return HealthCheckResult.model_validate({**events, "decision": decision, "reason": "r"})


def test_health_check_without_faults_passes() -> None:
    assert decide(evaluate_three_nodes(), None, 0, 3) == Decision("passed", "all 3 nodes are healthy")


def test_first_fault_repeats_the_health_check() -> None:
    result = decide(evaluate_three_nodes(event("i-2", gpus=7)), None, 0, 3)
    assert (result.decision, result.unhealthy_nodes) == ("repeat", ())
    assert result.reason == "i-2: 7 usable GPUs, p4d.24xlarge has 8. The health check is repeated"


def test_node_that_fails_twice_is_replaced() -> None:
    previous = create_result(evaluate_three_nodes(event("i-2", gpus=7)))
    result = decide(evaluate_three_nodes(event("i-2", efa_devices=1), event("i-3", gpus=7)), previous, 0, 3)
    assert (result.decision, result.unhealthy_nodes) == ("replace", ("i-2",))
    assert result.reason.startswith("i-2 failed twice: the OFI plugin uses 1 EFA devices")


def test_fault_of_another_node_repeats_the_health_check() -> None:
    previous = create_result(evaluate_three_nodes(event("i-2", gpus=7)))
    assert decide(evaluate_three_nodes(event("i-3", gpus=7)), previous, 0, 3).decision == "repeat"


def test_same_fault_of_all_nodes_twice_ends_the_run() -> None:
    on_all_nodes = evaluate_three_nodes(*(event(node, network="Socket", provider=None) for node in NODES))
    assert decide(on_all_nodes, None, 0, 3).decision == "repeat"
    result = decide(on_all_nodes, create_result(on_all_nodes), 0, 3)
    assert (result.decision, result.unhealthy_nodes) == ("failed", ())
    assert result.reason.startswith(
        "all 3 nodes failed twice the same way, so it is not a fault of one node: NCCL uses Socket"
    )


def test_single_node_is_replaced_once() -> None:
    single_node = evaluate(("i-1",), {"i-1": event("i-1", gpus=7)}, P4D, 8, {}, 3.0)
    assert decide(single_node, create_result(single_node), 0, 1).decision == "replace"
    assert decide(single_node, create_result(single_node), 1, 1).decision == "failed"


def test_slow_network_is_tolerated_after_a_second_health_check() -> None:
    slow = evaluate_three_nodes(*(event(node, network_gbs=20.3) for node in NODES))
    assert decide(slow, None, 0, 3).decision == "repeat"
    result = decide(slow, create_result(slow), 0, 3)
    assert result.decision == "passed"
    assert result.notes == (slow.faults[0].text,)


def test_fabric_fault_twice_ends_the_run() -> None:
    incomplete = evaluate_three_nodes(
        *(event(node, incomplete_stage="all-reduce over all nodes", network_gbs=None) for node in NODES)
    )
    result = decide(incomplete, create_result(incomplete), 0, 3)
    assert result.decision == "failed"
    assert result.reason.startswith("failed twice the same way, and no single node failed: all-reduce over all nodes")
