"""Result of a node in a health check, from the reports of its processes."""

from pathlib import Path
from typing import Any

from trainyard.models.events import RankFailure
from trainyard.models.health_check import NodeFault
from trainyard.node.agent.health_check import Findings, find_faults, merge_measurements
from trainyard.node.health_check.nccl_log import Network
from trainyard.node.health_check.process_report import ProcessReport
from trainyard.node.health_check.stages import (
    CLUSTER_ALL_REDUCE,
    DONE,
    INSPECT,
    MATMUL,
    NEIGHBORS,
    NODE_ALL_REDUCE,
    PEERS,
)

RENDEZVOUS_OUTPUT = "Rendezvous'ing worker group\nRendezvous complete for workers. Result:\n"


def report(local_rank: int, stage: str, **values: Any) -> ProcessReport:
    return ProcessReport(Path(f"process-{local_rank}.json"), stage, **values)


def failure(rank: int, message: str, exitcode: int = 1) -> RankFailure:
    return RankFailure(rank=rank, local_rank=rank, time=1.0, exitcode=exitcode, message=message, traceback="")


def find(
    reports: list[ProcessReport],
    *failures: RankFailure,
    elapsed_share: float = 0.1,
    torchrun_output: str = RENDEZVOUS_OUTPUT,
) -> Findings:
    return find_faults(reports, 2, failures, torchrun_output, elapsed_share, "i-1")


def test_complete_processes_have_no_findings() -> None:
    assert find([report(0, DONE), report(1, DONE)], elapsed_share=1.0) == Findings()


def test_failure_in_a_node_stage_is_a_fault_of_the_node() -> None:
    findings = find([report(0, INSPECT), report(1, MATMUL)], failure(3, "CUDA error: uncorrectable ECC error"))
    text = "process 1 failed (multiply matrices): CUDA error: uncorrectable ECC error"
    assert findings == Findings((NodeFault(kind="crashed", text=text),))


def test_peer_failure_within_the_node_is_a_fault_of_the_node() -> None:
    findings = find(
        [report(0, NODE_ALL_REDUCE), report(1, NODE_ALL_REDUCE)],
        failure(0, "DistBackendError: NCCL error, unhandled cuda"),
    )
    assert [fault.kind for fault in findings.faults] == ["crashed"]


def test_failure_of_a_peer_is_no_fault_of_the_node() -> None:
    failures = failure(0, "RuntimeError: Connection closed by peer [10.0.0.2]:41022")
    assert find([report(0, CLUSTER_ALL_REDUCE), report(1, CLUSTER_ALL_REDUCE)], failures) == Findings(
        incomplete_stage=CLUSTER_ALL_REDUCE
    )


def test_local_failure_in_a_cluster_stage_is_a_fault_of_the_node() -> None:
    findings = find([report(0, CLUSTER_ALL_REDUCE), report(1, CLUSTER_ALL_REDUCE)], failure(1, "ended by signal 9", -9))
    assert [fault.text for fault in findings.faults] == [
        "process 1 failed (all-reduce over all nodes): ended by signal 9"
    ]


def test_missing_peer_is_named_and_the_waiting_node_has_no_fault() -> None:
    reports = [report(local_rank, PEERS, missing_peers=["i-7"]) for local_rank in (0, 1)]
    assert find(reports, failure(0, "MissingPeersError: i-7 did not arrive"), elapsed_share=0.8) == Findings(
        missing_peers=("i-7",)
    )


def test_hung_process_is_a_fault_while_a_neighbor_waits() -> None:
    reports = [report(0, NEIGHBORS, missing_peers=["i-1"]), report(1, MATMUL)]
    findings = find(reports, failure(0, "MissingPeersError: i-1 did not arrive"), elapsed_share=0.65)
    assert findings == Findings((NodeFault(kind="hung", text="process 1 did not complete: multiply matrices"),))


def test_process_stopped_early_because_of_a_peer_has_not_hung() -> None:
    failures = failure(0, "RuntimeError: Connection reset by peer")
    assert find([report(0, PEERS), report(1, MATMUL)], failures, elapsed_share=0.2).faults == ()


def test_incomplete_all_reduce_is_no_fault_of_the_node() -> None:
    assert find([report(0, CLUSTER_ALL_REDUCE), report(1, CLUSTER_ALL_REDUCE)], elapsed_share=1.0) == Findings(
        incomplete_stage=CLUSTER_ALL_REDUCE
    )


def test_torchrun_waiting_for_other_nodes_is_no_fault_of_the_node() -> None:
    assert (
        find([], torchrun_output="Rendezvous'ing worker group\n", elapsed_share=1.0).incomplete_stage
        == "torchrun's rendezvous of all nodes"
    )


def test_torchrun_failure_before_the_rendezvous_is_a_fault_of_the_node() -> None:
    (fault,) = find([], torchrun_output="ModuleNotFoundError: No module named 'torch'\n", elapsed_share=0.1).faults
    assert fault.text == "torchrun did not reach its rendezvous: ModuleNotFoundError: No module named 'torch'"


def test_no_process_after_the_rendezvous_is_a_fault_of_the_node() -> None:
    (fault,) = find([], elapsed_share=1.0).faults
    assert fault.kind == "hung"


def test_measurements_are_those_of_the_slowest_process() -> None:
    reports = [report(0, DONE, matmul_tflops=240.01, nvlink_gbs=231.9), report(1, DONE, matmul_tflops=180.26)]
    measurements = merge_measurements(reports, Network("Libfabric", "efa", 4), 12.3)
    assert (measurements.matmul_tflops, measurements.nvlink_gbs, measurements.efa_devices, measurements.seconds) == (
        180.0,
        232.0,
        4,
        12.3,
    )


def test_devices_of_another_provider_are_not_efa_devices() -> None:
    assert merge_measurements([], Network("Libfabric", "tcp", 1), 1.0).efa_devices is None
