"""Whether a node's job computes: samples of GPU utilization, or of the CPU time of its processes."""

import logging
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trainyard.node.agent.processes import process_fields

# The driver averages GPU utilization over one second at most: four samples a minute detect a job that computes.
SAMPLE_SECONDS = 15.0
# Interval at which an idle node reports. A busy node does not report.
REPORT_SECONDS = 60.0
# Below this utilization a node is idle: of a GPU, or of one core per process of the job. A rank that computes uses a
# full core, also while it waits for its peers in NCCL; torchrun and two sleeping ranks used less than 1 % of a core.
IDLE_PERCENT = 5.0
# nvidia-smi responds in one second; without the driver's persistence mode, in several.
_SMI_SECONDS = 10.0
_TICKS = os.sysconf("SC_CLK_TCK")
LOG = logging.getLogger("agent.activity")


@dataclass(frozen=True)
class Reading:
    """One sample. `percent`: of the busiest GPU, or of one core per process since the previous sample."""

    resource: Literal["gpu", "cpu"]
    percent: float

    @property
    def is_idle(self) -> bool:
        """Whether the utilization is below IDLE_PERCENT."""
        return self.percent < IDLE_PERCENT


Meter = Callable[[float], Reading | None]
"""Takes a sample at a monotonic time, seconds; None if the utilization is not known."""


def gpu_meter() -> Meter:
    """Meter of the busiest GPU of the node, by nvidia-smi."""

    def sample(now: float) -> Reading | None:
        command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
        try:
            result = subprocess.run(command, capture_output=True, text=True, timeout=_SMI_SECONDS, check=True)
            return Reading("gpu", max(float(line) for line in result.stdout.split()))
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            LOG.warning("nvidia-smi: %s", error)
            return None

    return sample


def cpu_meter(root: int, processes: int, read_cpu_seconds: Callable[[int], float] | None = None) -> Meter:
    """Meter of the process `root` and its descendants, in percent of one core for each of the job's `processes`."""
    read = process_tree_cpu_seconds if read_cpu_seconds is None else read_cpu_seconds
    current: tuple[float, float] | None = None

    def sample(now: float) -> Reading | None:
        nonlocal current
        previous, current = current, (now, read(root))
        if previous is None or now <= previous[0]:
            return None
        seconds = current[1] - previous[1]
        # Less than before: a process left the tree with its CPU time, so the utilization is not known.
        return None if seconds < 0 else Reading("cpu", 100 * seconds / (now - previous[0]) / processes)

    return sample


def process_tree_cpu_seconds(root: int, proc: Path = Path("/proc")) -> float:
    """CPU seconds of a process and its descendants. Those of an exited process count at the parent that reaped it.

    Fields of /proc/PID/stat as in proc_pid_stat(5): 4 ppid, 14 utime, 15 stime, 16 cutime, 17 cstime.
    """
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for process, fields in process_fields(proc):
        children.setdefault(int(fields[1]), []).append(process)
        ticks[process] = sum(int(field) for field in fields[11:15])
    return sum(ticks.get(each, 0) for each in _process_tree(root, children)) / _TICKS


def _process_tree(root: int, children: Mapping[int, list[int]]) -> list[int]:
    tree = [root]
    for process in tree:
        tree += children.get(process, [])
    return tree


class Activity:
    """Activity of one attempt on this node: for how long it is idle, and when to report that."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._sampled_at = self._reported_at = self._idle_since = 0.0

    def sample(self, now: float) -> tuple[Reading, float | None] | None:
        """Take a sample if it is due. Returns the sample, and for how long the node is idle, if that must be reported.

        The seconds are None for a node that computes again after it was idle. `now`: monotonic time, seconds.
        """
        if now - self._sampled_at < SAMPLE_SECONDS:
            return None
        previous, self._sampled_at = self._sampled_at, now
        reading = self._meter(now)
        if reading is None:
            self._idle_since = 0.0  # not known, so the node may have computed
            return None
        if not reading.is_idle:
            was_reported, self._idle_since, self._reported_at = self._reported_at, 0.0, 0.0
            return (reading, None) if was_reported else None
        # CPU time covers the time since the previous sample; GPU utilization covers only this moment.
        self._idle_since = self._idle_since or (previous if previous and reading.resource == "cpu" else now)
        if now - self._reported_at < REPORT_SECONDS:
            return None
        self._reported_at = now
        return reading, now - self._idle_since
