"""What a node is, as its driver and torch see it."""

import subprocess
from dataclasses import dataclass

import torch

_SMI_SECONDS = 20.0


@dataclass(frozen=True)
class Driver:
    """What nvidia-smi tells: the driver's version, and a name for each GPU."""

    version: str
    names: tuple[str, ...]


def driver_in(answer: str) -> Driver:
    """nvidia-smi's `driver_version,name`, a line a GPU. Raises ValueError where it tells of none."""
    lines = [line.partition(",") for line in answer.splitlines() if line.strip()]
    if not lines:
        raise ValueError("nvidia-smi tells of no GPU")
    return Driver(lines[0][0].strip(), tuple(name.strip() for _, _, name in lines))


def driver() -> Driver:
    """Raises OSError or SubprocessError where nvidia-smi is missing, hangs or fails."""
    command = ["nvidia-smi", "--query-gpu=driver_version,name", "--format=csv,noheader"]
    return driver_in(subprocess.run(command, capture_output=True, text=True, timeout=_SMI_SECONDS, check=True).stdout)


def nccl_version() -> str:
    return ".".join(str(part) for part in torch.cuda.nccl.version())  # type: ignore[no-untyped-call]
