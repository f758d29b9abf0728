"""Report of one process of a health check, on the disk of its node: readable after the process is killed."""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from trainyard.node.health_check.stages import START


@dataclass
class ProcessReport:
    """Report of one process. `missing_peers`: nodes that did not arrive while it waited."""

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
    missing_peers: list[str] = field(default_factory=list)

    def write(self) -> None:
        """Write the report to its file, atomically."""
        temporary = self.file.with_suffix(".new")
        temporary.write_text(json.dumps({**asdict(self), "file": None}))
        os.replace(temporary, self.file)  # noqa: PTH105 (one system call)


def report_file(folder: Path, local_rank: int) -> Path:
    """File of the report of one process of this node."""
    return folder / f"process-{local_rank}.json"
