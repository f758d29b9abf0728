"""What a node says of a check, from what its processes left: blame only for what is its own."""

from pathlib import Path
from typing import Any

from trainyard.models.events import RankFailure
from trainyard.models.health_check import Fault
from trainyard.node.agent.health_check import Findings, conclude, measured
from trainyard.node.health_check.nccl_log import Network
from trainyard.node.health_check.notes import DONE, LOOK, MATMUL, OVER_ALL, PEERS, WITHIN, Notes

MET = "Rendezvous'ing worker group\nRendezvous complete for workers. Result:\n"


def notes(local: int, stage: str, **values: Any) -> Notes:
    return Notes(Path(f"process-{local}.json"), stage, **values)


def failure(rank: int, message: str, exitcode: int = 1) -> RankFailure:
    return RankFailure(rank=rank, time=1.0, exitcode=exitcode, message=message, traceback="")


def concluded(left: list[Notes], *failures: RankFailure, share: float = 0.1, torchrun: str = MET) -> Findings:
    return conclude(left, 2, failures, torchrun, share, "i-1")


def test_all_through_is_nothing_to_say() -> None:
    assert concluded([notes(0, DONE), notes(1, DONE)], share=1.0) == Findings()


def test_a_process_that_failed_at_its_own_work_is_the_nodes_fault() -> None:
    found = concluded([notes(0, LOOK), notes(1, MATMUL)], failure(3, "CUDA error: uncorrectable ECC error"))
    text = "process 1 failed (multiply matrices): CUDA error: uncorrectable ECC error"
    assert found == Findings((Fault(kind="crashed", text=text),))


def test_an_echo_within_the_node_is_still_the_nodes_own() -> None:
    found = concluded([notes(0, WITHIN), notes(1, WITHIN)], failure(0, "DistBackendError: NCCL error, unhandled cuda"))
    assert [fault.kind for fault in found.faults] == ["crashed"]


def test_a_peer_that_went_away_is_nobodys_fault_here() -> None:
    gone = failure(0, "RuntimeError: Connection closed by peer [10.0.0.2]:41022")
    assert concluded([notes(0, OVER_ALL), notes(1, OVER_ALL)], gone) == Findings(stuck=OVER_ALL)


def test_a_failure_of_its_own_among_all_nodes_is_its_fault() -> None:
    found = concluded([notes(0, OVER_ALL), notes(1, OVER_ALL)], failure(1, "ended by signal 9", -9))
    assert [fault.text for fault in found.faults] == ["process 1 failed (all-reduce over all nodes): ended by signal 9"]


def test_who_did_not_come_is_named_and_who_waited_has_no_fault() -> None:
    left = [notes(local, PEERS, absent=["i-7"]) for local in (0, 1)]
    assert concluded(left, failure(0, "PeersAbsent: i-7 did not come"), share=0.8) == Findings(absent=("i-7",))


def test_a_process_that_hangs_is_the_nodes_fault_though_its_neighbour_waits() -> None:
    left = [notes(0, "wait for the node's own processes", absent=["i-1"]), notes(1, MATMUL)]
    found = concluded(left, failure(0, "PeersAbsent: i-1 did not come"), share=0.65)
    assert found == Findings((Fault(kind="hung", text="process 1 did not end: multiply matrices"),))


def test_who_was_cut_early_for_a_peers_sake_has_not_hung() -> None:
    gone = failure(0, "RuntimeError: Connection reset by peer")
    assert concluded([notes(0, PEERS), notes(1, MATMUL)], gone, share=0.2).faults == ()


def test_an_all_reduce_that_nobody_ends_is_nobodys_fault() -> None:
    assert concluded([notes(0, OVER_ALL), notes(1, OVER_ALL)], share=1.0) == Findings(stuck=OVER_ALL)


def test_torchrun_that_waits_for_others_is_their_fault() -> None:
    assert (
        concluded([], torchrun="Rendezvous'ing worker group\n", share=1.0).stuck == "torchrun's rendezvous of all nodes"
    )


def test_torchrun_that_did_not_come_so_far_is_the_nodes_fault() -> None:
    (fault,) = concluded([], torchrun="ModuleNotFoundError: No module named 'torch'\n", share=0.1).faults
    assert fault.text == "torchrun did not come as far as its rendezvous: ModuleNotFoundError: No module named 'torch'"


def test_no_process_after_all_have_met_is_the_nodes_fault() -> None:
    (fault,) = concluded([], share=1.0).faults
    assert fault.kind == "hung"


def test_a_node_is_as_slow_as_its_slowest_process() -> None:
    left = [notes(0, DONE, matmul_tflops=240.01, nvlink_gbs=231.9), notes(1, DONE, matmul_tflops=180.26)]
    seen = measured(left, Network("Libfabric", "efa", 4), 12.3)
    assert (seen.matmul_tflops, seen.nvlink_gbs, seen.efa_devices, seen.seconds) == (180.0, 232.0, 4, 12.3)


def test_devices_of_another_provider_are_no_efa() -> None:
    assert measured([], Network("Libfabric", "tcp", 1), 1.0).efa_devices is None
