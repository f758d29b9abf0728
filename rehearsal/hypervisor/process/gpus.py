"""GPUs of a node of the process backend, as its driver would show them to programs: NVML and the list in /proc."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from rehearsal.hypervisor.process.nvml import pynvml

_DRIVER_FOLDER = "proc/driver/nvidia/gpus"
_CLOCK_MODULE = Path(__file__).parent / "clock"


def create_gpus(root: Path, count: int) -> None:
    """Give the node with this root healthy GPUs; nothing if `count` is 0."""
    if count:
        for index in range(count):
            # https://download.nvidia.com/XFree86/Linux-x86_64/580.95.05/README/procinterface.html
            (root / _DRIVER_FOLDER / f"0000:{0x10 + index:02x}:1c.0").mkdir(parents=True)
        _write_values(root, [{} for _ in range(count)])


def set_module_path(root: Path) -> None:
    """Let this process and its children import modules that emulate hardware, and no other module from here.

    NVML's module if the node has GPUs, and the module of the clock if the node has its own.
    """
    folders = [_CLOCK_MODULE] if "CLOCK_OFFSET_FILE" in os.environ else []
    if (root / pynvml.VALUES_FILE).exists():
        assert pynvml.__file__ is not None
        folders.append(Path(pynvml.__file__).parent)
    del os.environ["PYTHONPATH"]
    if folders:
        os.environ["PYTHONPATH"] = os.pathsep.join(map(str, folders))


def gpu_address(root: Path, index: int) -> str:
    """Return the PCI address of a GPU as Xids name it. It is invented for a node without GPUs."""
    folder = root / _DRIVER_FOLDER
    addresses = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    return addresses[index].removesuffix(".0") if index < len(addresses) else f"0000:{0x10 + index:02x}:1c"


def change_gpu(root: Path, index: int, values: Mapping[str, int]) -> None:
    """Change values that NVML returns for a GPU. A node without GPUs has none."""
    file = root / pynvml.VALUES_FILE
    if file.exists():
        gpus = json.loads(file.read_text())
        gpus[index] |= values
        _write_values(root, gpus)


def reset_gpus(root: Path) -> bool:
    """Reset all GPUs of the node; return whether none is lost.

    A reset remaps pending rows and clears volatile error counts
    (https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/). It repairs neither a failed remapping nor a lost GPU.
    """
    file = root / pynvml.VALUES_FILE
    if not file.exists():
        return True
    gpus = json.loads(file.read_text())
    for gpu in gpus:
        if not gpu.get("lost"):
            remapped = gpu.get("remapped_rows", 0) + gpu.get("remapping_pending", 0)
            failed = gpu.get("remapping_failed", 0)
            gpu.clear()
            gpu |= {"remapped_rows": remapped, "remapping_failed": failed}
    _write_values(root, gpus)
    return not any(gpu.get("lost") for gpu in gpus)


def _write_values(root: Path, gpus: list[dict[str, int]]) -> None:
    new = root / f"{pynvml.VALUES_FILE}.new"
    new.write_text(json.dumps(gpus))
    new.rename(root / pynvml.VALUES_FILE)  # in one step: the node reads it meanwhile
