"""Values that the kernel keeps in files: EFA, disks, memory, and errors of the host's memory."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

from trainyard.host_memory import read_sizes
from trainyard.node.health.rules import (
    DISK_FULL,
    EFA_DOWN,
    EFA_ERRORS,
    EFA_MISSING,
    FILESYSTEM_READ_ONLY,
    HOST_MEMORY,
    MEMORY_LOW,
)
from trainyard.node.health.sensor import READ_SECONDS, Reading
from trainyard.node.identity import ROOT

# Counter of a port -> growth a second that is too much. Names: EC2 user guide, "Monitor an EFA"; numbers: AWS's
# node monitoring agent (github.com/aws/eks-node-monitoring-agent, monitors/networking/efa/efa.go).
EFA_LIMITS = {
    "rx_drops": 100,
    "rdma_read_wr_err": 100,
    "rdma_write_wr_err": 100,
    "retrans_pkts": 1000,
    "retrans_timeout_events": 100,
    "impaired_remote_conn_events": 100,
    "unresponsive_remote_events": 100,
}
FREE_DISK, FREE_MEMORY = 0.01, 0.03


class Efa:
    """Devices, ports and error counters below /sys/class/infiniband. `devices`: EFA devices that the node should have.

    https://docs.kernel.org/admin-guide/abi-stable.html, sysfs-class-infiniband
    """

    name, interval_seconds = "EFA", READ_SECONDS

    def __init__(self, devices: int, root: Path = ROOT) -> None:
        self._devices, self._folder = devices, root / "sys/class/infiniband"
        self._counters: dict[Path, tuple[int, float]] = {}  # file -> value and time of the last reading

    def read(self) -> Iterator[Reading]:
        """Return missing devices, ports that are down and counters that grow too fast."""
        if not self._folder.is_dir():  # no driver: the health check before the job has that
            return
        devices = sorted(self._folder.iterdir())
        if len(devices) < self._devices:
            yield Reading(EFA_MISSING, None, f"{len(devices)} of {self._devices} EFA devices exist.")
        for device in devices:
            for port in sorted(device.glob("ports/*")):
                state = (port / "state").read_text().strip()
                if not state.startswith("4:"):  # 4: ACTIVE
                    yield Reading(EFA_DOWN, device.name, f"Port {port.name} has the state {state}.")
                for name, limit in EFA_LIMITS.items():
                    rate = self._growth(port / "hw_counters" / name)
                    if rate > limit:
                        yield Reading(EFA_ERRORS, device.name, f"{name} grows by {rate:.0f} a second.")

    def _growth(self, counter: Path) -> float:
        """Growth of a counter per second since the last reading; 0 at the first, or if the device does not have it."""
        try:
            value = int(counter.read_text())
        except FileNotFoundError:
            return 0.0
        now = time.monotonic()
        before, then = self._counters.get(counter, (value, now))
        self._counters[counter] = (value, now)
        return (value - before) / (now - then) if now > then else 0.0

    def close(self) -> None:
        """Forget the counters: the time until the next reading is not known."""
        self._counters.clear()


class Disks:
    """Space and state of local file systems. `folders`: their mount points, as the node sees them."""

    name, interval_seconds = "disks", READ_SECONDS

    def __init__(self, *folders: str, root: Path = ROOT) -> None:
        self._folders = {folder: root / folder.lstrip("/") for folder in folders}

    def read(self) -> Iterator[Reading]:
        """Return file systems that are full or read-only."""
        for name, folder in self._folders.items():
            if not folder.exists():
                continue
            state = os.statvfs(folder)
            if state.f_flag & os.ST_RDONLY:
                yield Reading(FILESYSTEM_READ_ONLY, name, "The file system is mounted read-only.")
            space = state.f_bavail / state.f_blocks if state.f_blocks else 1.0
            inodes = state.f_favail / state.f_files if state.f_files else 1.0  # some file systems count none
            if min(space, inodes) < FREE_DISK:
                text = f"{space:.1%} of the space and {inodes:.1%} of the inodes are free."
                yield Reading(DISK_FULL, name, text)

    def close(self) -> None:
        """Nothing is open."""


class Memory:
    """Available memory, and uncorrected errors of the host's memory where the instance shows them."""

    name, interval_seconds = "memory", READ_SECONDS

    def __init__(self, root: Path = ROOT) -> None:
        self._meminfo, self._edac = root / "proc/meminfo", root / "sys/devices/system/edac/mc"

    def read(self) -> Iterator[Reading]:
        """Return low memory and uncorrected errors."""
        if memory := read_sizes(self._meminfo):
            available = memory["MemAvailable"] / memory["MemTotal"]
            if available < FREE_MEMORY:
                text = f"{available:.1%} of {memory['MemTotal'] / 2**30:.0f} GiB of memory is available."
                yield Reading(MEMORY_LOW, None, text)
        for counter in sorted(self._edac.glob("mc*/ue_count")):
            if count := int(counter.read_text()):
                yield Reading(HOST_MEMORY, counter.parent.name.upper(), f"{count} uncorrected memory errors.")

    def close(self) -> None:
        """Nothing is open."""
