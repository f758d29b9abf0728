"""Hardware of a node, as its driver and torch report it."""

import subprocess
from dataclasses import dataclass

import torch

_SMI_SECONDS = 20.0


@dataclass(frozen=True)
class Driver:
    """Driver version and GPU names from nvidia-smi."""

    version: str
    names: tuple[str, ...]


def parse_driver(output: str) -> Driver:
    """Parse nvidia-smi's `driver_version,name`, one line per GPU. Raises ValueError if there is no GPU."""
    lines = [line.partition(",") for line in output.splitlines() if line.strip()]
    if not lines:
        raise ValueError("nvidia-smi lists no GPU")
    return Driver(lines[0][0].strip(), tuple(name.strip() for _, _, name in lines))


def read_driver() -> Driver:
    """Driver and GPUs of this node. Raises OSError or SubprocessError if nvidia-smi is missing, hangs or fails."""
    command = ["nvidia-smi", "--query-gpu=driver_version,name", "--format=csv,noheader"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=_SMI_SECONDS, check=True)
    return parse_driver(result.stdout)


def nccl_version() -> str:
    """Version of the NCCL that torch uses."""
    return ".".join(str(part) for part in torch.cuda.nccl.version())  # type: ignore[no-untyped-call]
