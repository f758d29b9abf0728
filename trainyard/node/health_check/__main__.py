"""One process of a health check, run by torchrun: `-m trainyard.node.health_check`.

It first runs the stages that need no other process, then those with the processes of its node, then those with all
nodes. It ends with exit code 0 if it completes all stages. The controller decides whether the values are sufficient.
"""

import argparse
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.node.health_check import stages
from trainyard.node.health_check.process_report import ProcessReport, report_file

if TYPE_CHECKING:
    import torch
    from torch._C._distributed_c10d import Store

# torchrun's rendezvous is over, so its store exists unless the first node has failed. torch 2.15 may take a third
# longer than this timeout.
_CONNECT_SECONDS = 20.0


class HealthCheckProcess:
    """This process of a health check. torchrun sets its ranks, and the address of its store on the first node.

    `folder`: folder of the node's files. `node`, `first_node`: instance ids of this node and of the first node.
    """

    def __init__(
        self, report: ProcessReport, folder: Path, node: str, first_node: str, timeout_seconds: float, on_gpu: bool
    ) -> None:
        self.report, self._folder, self._node, self._first_node = report, folder, node, first_node
        self._on_gpu, self._started_at, self._timeout_seconds = on_gpu, time.time(), timeout_seconds
        self._rank, self._world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self._local_rank, self._processes = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])

    def enter_stage(self, stage: str) -> None:
        """Write the next stage and the duration of the previous one to the report, in case this process hangs."""
        elapsed = time.time() - self._started_at
        self.report.seconds[self.report.stage] = round(elapsed - sum(self.report.seconds.values()), 3)
        self.report.stage = stage
        self.report.write()

    def run(self) -> None:
        """Run all stages.

        Raises MissingPeersError if other nodes do not arrive. Any other error is a fault of this node or follows from
        the failure of another.
        """
        self.report.write()
        import torch  # takes seconds, and longer on a faulty disk: it is a stage

        self.report.torch = torch.__version__
        self.enter_stage(stages.INSPECT)
        device = self._inspect()
        self.enter_stage(stages.MATMUL)
        self._multiply()
        if self._processes > 1:
            self.report.nvlink_gbs = self._check_node(device)
        if self._world_size > self._processes:
            self.enter_stage(stages.STORE)
            store = self._wait_for_all_nodes()
            self.enter_stage(stages.CLUSTER_ALL_REDUCE)
            self.report.network_gbs = self._all_reduce(store, self._rank, self._world_size, device)
        self.enter_stage(stages.DONE)

    def _deadline(self, share: float) -> float:
        """Unix time at which this share of the timeout has passed."""
        return self._started_at + share * self._timeout_seconds

    def _inspect(self) -> "torch.device":
        """Report GPUs and versions of this node; the device of this process."""
        import torch

        report = self.report
        report.backend = "nccl" if self._on_gpu else "gloo"
        if not self._on_gpu:
            return torch.device("cpu")
        from trainyard.node.health_check import hardware

        driver = hardware.read_driver()
        count = torch.cuda.device_count()
        # Without Fabric Manager GPUs are listed but not usable: the first use is here.
        report.gpu_names = sorted({*driver.names, *(torch.cuda.get_device_name(index) for index in range(count))})
        report.gpus, report.driver = min(len(driver.names), count), driver.version
        report.cuda, report.nccl = torch.version.cuda, hardware.nccl_version()
        report.write()  # a process without a GPU fails at the next line
        torch.cuda.set_device(self._local_rank)
        return torch.device("cuda", self._local_rank)

    def _multiply(self) -> None:
        """Measure matrix multiplication on this process's share of all GPUs, also if the job uses fewer GPUs."""
        import torch

        from trainyard.node.health_check.matmul import measure_tflops

        if self._on_gpu:
            indices = range(self._local_rank, self.report.gpus, self._processes)
            devices = [torch.device("cuda", index) for index in indices]
        else:
            devices = [torch.device("cpu")]
        self.report.matmul_tflops = min((measure_tflops(device) for device in devices), default=None)
        self.report.write()

    def _check_node(self, device: "torch.device") -> float:
        """Bus bandwidth within this node, GB/s. A store in a file: no other node can disturb it."""
        from torch._C._distributed_c10d import FileStore

        from trainyard.node.health_check.barrier import Barrier

        store = FileStore(str(self._folder / "store"), self._processes)
        first = self._rank - self._local_rank
        self.enter_stage(stages.NEIGHBORS)
        barrier = Barrier(store, self._rank, self._processes, self._node)
        deadline = self._deadline(stages.NEIGHBOR_TIMEOUT_SHARE)
        barrier.wait(stages.NEIGHBORS, range(first, first + self._processes), deadline)
        self.enter_stage(stages.NODE_ALL_REDUCE)
        return self._all_reduce(store, self._local_rank, self._processes, device)

    def _wait_for_all_nodes(self) -> "Store":
        """Wait for the processes of all nodes; the store of torchrun on the first node.

        Raises MissingPeersError for nodes that do not arrive. torchrun ends, and its store with it, if a process of the
        first node fails: the first node is missing then.
        """
        from torch._C._distributed_c10d import PrefixStore, TCPStore
        from torch.distributed import DistNetworkError

        from trainyard.node.health_check.barrier import Barrier, MissingPeersError

        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        deadline = self._deadline(stages.PEER_TIMEOUT_SHARE)
        timeout = timedelta(seconds=min(max(deadline - time.time(), 1.0), _CONNECT_SECONDS))
        try:
            shared = TCPStore(host, port, is_master=False, timeout=timeout, wait_for_workers=False)
            store = PrefixStore("health-check", shared)
            barrier = Barrier(store, self._rank, self._processes, self._node)
            self.enter_stage(stages.PEERS)
            barrier.wait(stages.PEERS, range(self._world_size), deadline)
        except DistNetworkError as error:
            raise MissingPeersError(self.report.stage, [self._first_node]) from error
        return store

    def _all_reduce(self, store: "Store", rank: int, processes: int, device: "torch.device") -> float:
        """Bus bandwidth of an all-reduce in a new process group, GB/s."""
        import torch.distributed as dist
        from torch._C._distributed_c10d import PrefixStore

        from trainyard.node.health_check import allreduce

        assert self.report.backend is not None
        dist.init_process_group(
            self.report.backend,
            store=PrefixStore("all-reduce", store),
            rank=rank,
            world_size=processes,
            # Longer than the timeout of the health check: the agent must stop a hang, because this timeout aborts.
            timeout=timedelta(seconds=2 * self._timeout_seconds),
            device_id=device if self._on_gpu else None,
        )
        try:
            return allreduce.measure_bandwidth(device)
        finally:
            dist.destroy_process_group()


def main() -> int:
    """Run this process of a health check; the exit code."""
    parser = argparse.ArgumentParser(prog="trainyard.node.health_check")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--instance", required=True)
    parser.add_argument("--first-node", required=True)
    parser.add_argument("--timeout-seconds", type=float, required=True)
    parser.add_argument("--gpus", action="store_true")
    options = parser.parse_args()
    report = ProcessReport(report_file(options.folder, int(os.environ["LOCAL_RANK"])))
    process = HealthCheckProcess(
        report, options.folder, options.instance, options.first_node, options.timeout_seconds, options.gpus
    )
    try:
        process.run()
    except Exception as error:
        if missing_peers := getattr(error, "missing_peers", None):
            report.missing_peers = missing_peers
            report.write()
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
