"""What one process of a check leaves on its node's disk: read by the agent also when the process was killed."""

import json
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

# Stages of a process, in their order: alone, then with its node's other processes, then with all nodes.
START, LOOK, MATMUL = "start torch", "look at the node", "multiply matrices"
STORE = "reach the head's store"
NEIGHBOURS, WITHIN = "wait for the node's own processes", "all-reduce within the node"
PEERS, OVER_ALL = "wait for all nodes", "all-reduce over all nodes"
DONE = "done"
ALONE = (START, LOOK, MATMUL)
OF_THE_NODE = (*ALONE, STORE, WITHIN)  # who hangs or fails in one of these has himself to blame

# Shares of a check's whole time until which the node's own processes, and all nodes, are waited for: what is left is
# for the all-reduce and for the words about it.
NEIGHBOURS_SHARE, PEERS_SHARE = 0.6, 0.75


@dataclass
class Notes:
    """One process. `absent`: nodes that it waited for in vain."""

    file: Path
    stage: str = START
    seconds: dict[str, float] = field(default_factory=dict)
    gpus: int = 0
    gpu_names: list[str] = field(default_factory=list)
    driver: str | None = None
    cuda: str | None = None
    nccl: str | None = None
    torch: str | None = None
    backend: str | None = None
    matmul_tflops: float | None = None
    nvlink_gbs: float | None = None
    network_gbs: float | None = None
    absent: list[str] = field(default_factory=list)

    def write(self) -> None:
        """Whole or not at all: a reader never sees half of it."""
        beside = self.file.with_suffix(".new")
        beside.write_text(json.dumps({**asdict(self), "file": None}))
        os.replace(beside, self.file)  # noqa: PTH105 (the plain call: nothing of it may fail half-way)


def notes_file(folder: Path, local_rank: int) -> Path:
    return folder / f"process-{local_rank}.json"


def read_notes(folder: Path) -> list[Notes]:
    """Of all processes of this node that have begun."""
    known = {one.name for one in fields(Notes)}
    found = []
    for file in sorted(folder.glob("process-*.json")):
        told = json.loads(file.read_text())
        found.append(Notes(**{name: value for name, value in told.items() if name in known} | {"file": file}))
    return found
