"""One process of a health check, run by torchrun: `-m trainyard.node.health_check`.

What needs nobody comes first; then the node's own processes together, then all. It ends with status 0 when it came
through, however fast: what is too slow is the controller's to say.
"""

import argparse
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from trainyard.node.health_check import notes as stages
from trainyard.node.health_check.notes import NEIGHBOURS_SHARE, PEERS_SHARE, Notes, notes_file

if TYPE_CHECKING:
    import torch
    from torch._C._distributed_c10d import Store

    from trainyard.node.health_check.meeting import Meeting


class Process:
    """This process, and where it stands among the others as torchrun says it."""

    def __init__(self, notes: Notes, node: str, store: str, name: str, seconds: float, on_gpu: bool) -> None:
        self.notes, self._node, self._store, self._name, self._on_gpu = notes, node, store, name, on_gpu
        self._began, self._seconds = time.time(), seconds
        self._rank, self._world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self._local, self._each = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])

    def enter(self, stage: str) -> None:
        """From here on it is at this; said on the disk, should it not come back."""
        now = time.time()
        self.notes.seconds[self.notes.stage] = round(now - self._began - sum(self.notes.seconds.values()), 3)
        self.notes.stage = stage
        self.notes.write()

    def go(self) -> None:
        """Raises PeersAbsent where others did not come; whatever else it raises is this node's own or an echo."""
        self.notes.write()
        import torch  # takes seconds, and longer on a sick disk: it is a stage

        self.notes.torch = torch.__version__
        self.enter(stages.LOOK)
        device = self._look()
        self.enter(stages.MATMUL)
        self._multiply()
        self.enter(stages.STORE)
        store, meeting = self._meet()
        if self._each > 1:
            first = self._rank - self._local
            self.enter(stages.NEIGHBOURS)
            meeting.come(stages.NEIGHBOURS, range(first, first + self._each), self._until(NEIGHBOURS_SHARE))
            self.enter(stages.WITHIN)
            self.notes.nvlink_gbs = self._all_reduce(store, f"node-{first}", self._local, self._each, device)
        if self._world > self._each:
            self.enter(stages.PEERS)
            meeting.come(stages.PEERS, range(self._world), self._until(PEERS_SHARE))
            self.enter(stages.OVER_ALL)
            self.notes.network_gbs = self._all_reduce(store, "all", self._rank, self._world, device)
        self.enter(stages.DONE)

    def _until(self, share: float) -> float:
        return self._began + share * self._seconds

    def _look(self) -> "torch.device":
        import torch

        notes = self.notes
        notes.backend = "nccl" if self._on_gpu else "gloo"
        if not self._on_gpu:
            return torch.device("cpu")
        from trainyard.node.health_check import hardware

        driver = hardware.driver()
        seen = torch.cuda.device_count()
        # Without Fabric Manager GPUs are counted, and none can be used: the first use is here.
        notes.gpu_names = sorted({*driver.names, *(torch.cuda.get_device_name(index) for index in range(seen))})
        notes.gpus, notes.driver = min(len(driver.names), seen), driver.version
        notes.cuda, notes.nccl = torch.version.cuda, hardware.nccl_version()
        notes.write()  # a process without a GPU of its own ends at the next line
        torch.cuda.set_device(self._local)
        return torch.device("cuda", self._local)

    def _multiply(self) -> None:
        """On this process's GPUs: all of the node's between its processes, also where the job uses fewer."""
        import torch

        from trainyard.node.health_check.matmul import tflops

        if self._on_gpu:
            own = [torch.device("cuda", index) for index in range(self._local, self.notes.gpus, self._each)]
        else:
            own = [torch.device("cpu")]
        self.notes.matmul_tflops = min((tflops(device) for device in own), default=None)
        self.notes.write()

    def _meet(self) -> "tuple[Store, Meeting]":
        """On the head's store, which no node takes with it when it hangs or goes."""
        from torch._C._distributed_c10d import PrefixStore, TCPStore

        from trainyard.node.health_check.meeting import Meeting

        host, _, port = self._store.rpartition(":")
        left = timedelta(seconds=max(self._until(PEERS_SHARE) - time.time(), 1.0))
        head = TCPStore(host, int(port), is_master=False, timeout=left, wait_for_workers=False)
        store = PrefixStore(self._name, head)
        return store, Meeting(store, self._rank, self._each, self._node)

    def _all_reduce(self, store: "Store", name: str, rank: int, processes: int, device: "torch.device") -> float:
        """GB/s of a group of its own."""
        import torch.distributed as dist
        from torch._C._distributed_c10d import PrefixStore

        from trainyard.node.health_check import allreduce

        assert self.notes.backend is not None
        dist.init_process_group(
            self.notes.backend,
            store=PrefixStore(name, store),
            rank=rank,
            world_size=processes,
            # What hangs is cut by the agent, whose word it is then: a time-out of the group's own ends in an abort.
            timeout=timedelta(seconds=2 * self._seconds),
            device_id=device if self._on_gpu else None,
        )
        try:
            return allreduce.measure(device)
        finally:
            dist.destroy_process_group()


def main() -> int:
    given = argparse.ArgumentParser(prog="trainyard.node.health_check")
    given.add_argument("--folder", type=Path, required=True)
    given.add_argument("--instance", required=True)
    given.add_argument("--store", required=True)
    given.add_argument("--check", required=True)
    given.add_argument("--seconds", type=float, required=True)
    given.add_argument("--gpus", action="store_true")
    asked = given.parse_args()
    notes = Notes(notes_file(asked.folder, int(os.environ["LOCAL_RANK"])))
    process = Process(notes, asked.instance, asked.store, asked.check, asked.seconds, asked.gpus)
    try:
        process.go()
    except Exception as error:
        if absent := getattr(error, "absent", None):
            notes.absent = absent
            notes.write()
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
