"""`nvidia-smi` on a node of the process backend: processes on the GPUs, utilization, reset.

Options as in https://docs.nvidia.com/deploy/nvidia-smi/. The ranks of the node count as processes that use its GPUs.
"""

import json
import os
import sys
from pathlib import Path

from rehearsal.hypervisor.process.gpus import reset_gpus
from rehearsal.hypervisor.process.nvml import pynvml
from rehearsal.hypervisor.processes import environments, find_rank_log


def main() -> int:
    """Run one command. Returns its exit code, which is that of NVML's error."""
    root, arguments = Path(os.environ["TRAINYARD_ROOT"]), sys.argv[1:]
    match arguments:
        case ["--query-compute-apps=pid", "--format=csv,noheader"]:
            sys.stdout.writelines(f"{number}\n" for number in gpu_processes(root))
        case ["--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]:
            gpus = json.loads((root / pynvml.VALUES_FILE).read_text())
            sys.stdout.writelines(f"{(pynvml.HEALTHY | gpu)['utilization']}\n" for gpu in gpus)
        case ["--gpu-reset"]:
            if gpu_processes(root):
                sys.stdout.write("GPU is in use by another client.\n")
                return pynvml.NVML_ERROR_IN_USE
            return 0 if reset_gpus(root) else pynvml.NVML_ERROR_GPU_IS_LOST
        case _:
            sys.stderr.write(f"nvidia-smi {' '.join(arguments)} is not rehearsed\n")
            return pynvml.NVML_ERROR_INVALID_ARGUMENT
    return 0


def gpu_processes(root: Path) -> list[int]:
    """Return the ids of the processes that use the GPUs of the node with this root."""
    return [
        process.pid
        for process, environment in environments()
        if environment.get("TRAINYARD_ROOT") == str(root) and find_rank_log(process) is not None
    ]


if __name__ == "__main__":
    sys.exit(main())
