"""Faults of a GPU: what its driver writes to the kernel log, what NVML returns, and how the ranks of the node fail."""

import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import psutil
from pydantic import Field, ValidationInfo, field_validator

from rehearsal.hypervisor.process.gpus import change_gpu, gpu_address
from rehearsal.hypervisor.processes import send_signal
from rehearsal.run_faults.job import Job, NodeFault

GpuCondition = Literal["ecc", "row-remap-pending", "row-remap-failed", "thermal", "power-brake", "nvlink", "lost"]
_CONDITIONS: dict[GpuCondition, dict[str, int]] = {
    "ecc": {"uncorrected_errors": 1},
    "row-remap-pending": {"remapping_pending": 1},
    "row-remap-failed": {"remapping_failed": 1},
    "thermal": {"clock_reasons": 0x40, "celsius": 91},
    "power-brake": {"clock_reasons": 0x80},
    "nvlink": {"nvlinks": 11},
    "lost": {"lost": 1},
}
# What NVML returns after an Xid: memory errors as in docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt, recovery actions
# after 119 and 120 as in github.com/NVIDIA/open-gpu-kernel-modules issue 1045.
_XID_VALUES: dict[int, dict[str, int]] = {
    48: {"uncorrected_errors": 1, "remapping_pending": 1},
    63: {"remapping_pending": 1},
    64: {"remapping_failed": 1},
    74: {"nvlinks": 11},
    79: {"lost": 1},
    94: {"uncorrected_errors": 1, "remapping_pending": 1},
    95: {"uncorrected_errors": 1, "recovery_action": 1},
    119: {"recovery_action": 1},
    120: {"recovery_action": 1},
    154: {"recovery_action": 2},
}
# Texts after the number of an Xid. Sources: github.com/NVIDIA/open-gpu-kernel-modules issue 1151 (79) and 1150 (45),
# github.com/leptonai/gpud pull requests 46 (13, 109), 1160 (149) and 1174 (94), github.com/stas00/ml-engineering
# compute/accelerator/nvidia/debug.md (63), its test of Xid 119 in github.com/leptonai/gpud,
# github.com/NVIDIA/open-gpu-kernel-modules issue 1134 (154, after an error that ended the process).
_XID_TEXTS = {
    13: "pid='<unknown>', name=<unknown>, Graphics SM Warp Exception on (GPC 7, TPC 7, SM 0): Illegal Instruction "
    "Parameter",
    45: "pid=1818990, name=python3, Ch 00000001",
    63: "pid=1896, Row Remapper: New row marked for remapping, reset gpu to activate.",
    79: "GPU has fallen off the bus.",
    94: "pid=1234, name=python3, Contained ECC error",
    109: "pid=1797828, name=pt_main_thread, Ch 00000008, errorString CTX SWITCH TIMEOUT, Info 0x58005",
    119: "pid=289957, name=pt_main_thread, Timeout after 45s of waiting for RPC response from GPU0 GSP! Expected "
    "function 76 (GSP_RM_CONTROL) (0xa06f0112 0x1).",
    149: "NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x025001c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)",
    154: "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
}
# After these a process that uses the GPU cannot continue: its CUDA calls fail (the Xid catalog's action is to restart
# the application, or to reset the GPU). https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html
_FATAL_XIDS = {13, 31, 46, 48, 62, 74, 79, 94, 95, 109, 110, 119, 120, 140, 143, 149, 154, 158}
_LOST_XID = 79  # no process of the node can use this GPU until it has another host
_KERNEL_ERROR = 3  # priority of the driver's messages: facility 0 (kernel), level 3 (error)


class GpuFault(NodeFault):
    """A fault of one GPU: an Xid in the kernel log of its node, a condition that NVML reports, or both.

    After an Xid that ends processes, the ranks of the node get SIGABRT, as when NCCL's watchdog ends a process after an
    error of CUDA. After Xid 79, ranks that start on that node later get it, too.
    """

    kind: Literal["gpu"] = "gpu"
    gpu: int = Field(default=0, ge=0, description="GPU of the node.")
    xid: int | None = Field(default=None, ge=1, description="Number of the Xid; none: the kernel log has none.")
    condition: GpuCondition | None = Field(default=None, validate_default=True, description="Condition in NVML.")

    @field_validator("condition")
    @classmethod
    def _require_effect(cls, value: GpuCondition | None, info: ValidationInfo) -> GpuCondition | None:
        if value is None and info.data.get("xid") is None:
            raise ValueError("required without xid")
        return value

    @property
    def lasts(self) -> bool:
        """Whether processes that start on the node later fail, too."""
        return self.xid == _LOST_XID

    @property
    def is_fatal(self) -> bool:
        """Whether the ranks of the node end."""
        return self.xid in _FATAL_XIDS

    @property
    def needs_replacement(self) -> bool:
        """Whether the node must be replaced: docs/node-health.md."""
        return self.lasts or self.xid == 64 or self.condition in ("lost", "row-remap-failed")

    def affect(self, job: Job, instance: str) -> bool:
        """Break the GPU, and end the ranks of its node if they cannot continue."""
        ranks = job.ranks_of(self.node)
        try:
            self.break_gpu(ranks[0].root)
        except OSError:  # the rank by which the node is reached has ended
            return False
        if self.is_fatal:
            self.end_ranks(rank.process for rank in ranks)
        if self.lasts:
            job.call_repeatedly(lambda: self.end_ranks(job.processes_of(instance)))
        return True

    def break_gpu(self, root: Path) -> None:
        """Change what NVML returns on the node with this root folder, and write the Xid to its kernel log."""
        values = _XID_VALUES.get(self.xid or 0, {}) | (_CONDITIONS[self.condition] if self.condition else {})
        change_gpu(root, self.gpu, values)
        if self.xid is not None:
            text = _XID_TEXTS.get(self.xid, "pid='<unknown>', name=<unknown>, Ch 00000008")
            write_kernel_log(root, f"NVRM: Xid (PCI:{gpu_address(root, self.gpu)}): {self.xid}, {text}")

    def end_ranks(self, ranks: Iterable[psutil.Process]) -> None:
        """End these ranks as the failing GPU does."""
        for rank in ranks:
            send_signal(rank, signal.SIGABRT)


def write_kernel_log(root: Path, text: str) -> None:
    """Append a record to the kernel log of a node, in the format of /dev/kmsg.

    https://kernel.org/doc/Documentation/ABI/testing/dev-kmsg. A booted node has a pipe there.
    """
    assert not root.samefile("/"), "the kernel log of this machine is not that of a node"
    log = root / "dev/kmsg"
    log.parent.mkdir(exist_ok=True)
    sequence, microseconds = time.monotonic_ns() // 1_000_000, time.monotonic_ns() // 1000
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(f"{_KERNEL_ERROR},{sequence},{microseconds},-;{text}\n".encode())
