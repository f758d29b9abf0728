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

    from trainyard.node.health_check.barrier import Barrier


class HealthCheckProcess:
    """This process of a health check. torchrun sets its ranks.

    `store`: host:port of the rendezvous store. `rendezvous`: id of the health check, a prefix in that store.
    """

    def __init__(
        self, report: ProcessReport, node: str, store: str, rendezvous: str, timeout_seconds: float, on_gpu: bool
    ) -> None:
        self.report, self._node, self._store, self._rendezvous = report, node, store, rendezvous
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
        self.enter_stage(stages.STORE)
        store, barrier = self._connect()
        if self._processes > 1:
            first = self._rank - self._local_rank
            self.enter_stage(stages.NEIGHBORS)
            neighbors = range(first, first + self._processes)
            barrier.wait(stages.NEIGHBORS, neighbors, self._deadline(stages.NEIGHBOR_TIMEOUT_SHARE))
            self.enter_stage(stages.NODE_ALL_REDUCE)
            self.report.nvlink_gbs = self._all_reduce(store, f"node-{first}", self._local_rank, self._processes, device)
        if self._world_size > self._processes:
            self.enter_stage(stages.PEERS)
            barrier.wait(stages.PEERS, range(self._world_size), self._deadline(stages.PEER_TIMEOUT_SHARE))
            self.enter_stage(stages.CLUSTER_ALL_REDUCE)
            self.report.network_gbs = self._all_reduce(store, "all", self._rank, self._world_size, device)
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

    def _connect(self) -> "tuple[Store, Barrier]":
        """Connect to the store on the head, which survives the failure of any worker."""
        from torch._C._distributed_c10d import PrefixStore, TCPStore

        from trainyard.node.health_check.barrier import Barrier

        host, _, port = self._store.rpartition(":")
        remaining = timedelta(seconds=max(self._deadline(stages.PEER_TIMEOUT_SHARE) - time.time(), 1.0))
        head = TCPStore(host, int(port), is_master=False, timeout=remaining, wait_for_workers=False)
        store = PrefixStore(self._rendezvous, head)
        return store, Barrier(store, self._rank, self._processes, self._node)

    def _all_reduce(self, store: "Store", name: str, rank: int, processes: int, device: "torch.device") -> float:
        """Bus bandwidth of an all-reduce in a new process group, GB/s."""
        import torch.distributed as dist
        from torch._C._distributed_c10d import PrefixStore

        from trainyard.node.health_check import allreduce

        assert self.report.backend is not None
        dist.init_process_group(
            self.report.backend,
            store=PrefixStore(name, store),
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
    parser.add_argument("--store", required=True)
    parser.add_argument("--rendezvous", required=True)
    parser.add_argument("--timeout-seconds", type=float, required=True)
    parser.add_argument("--gpus", action="store_true")
    options = parser.parse_args()
    report = ProcessReport(report_file(options.folder, int(os.environ["LOCAL_RANK"])))
    process = HealthCheckProcess(
        report, options.instance, options.store, options.rendezvous, options.timeout_seconds, options.gpus
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
