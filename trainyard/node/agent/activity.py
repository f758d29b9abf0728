"""Whether a node's job works: the use of its GPUs, or the processor time of its processes, looked at now and then."""

import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

# Looks are points in time to a GPU's driver, which averages over a second at most: four a minute see a job at work.
LOOK_SECONDS = 15.0
# How often an idle node says that it is. A job at work says nothing.
TELL_SECONDS = 60.0
# Below it nothing works. Of a GPU, or of one core for each of the job's processes: a rank that computes takes a whole
# one, also while it waits for its peers in NCCL; torchrun and two ranks that slept took under 1 % of a core together.
IDLE_PERCENT = 5.0
# nvidia-smi answers in a second; without the driver's persistence mode, in some.
_SMI_SECONDS = 10.0
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Reading:
    """One look. `percent`: of the busiest GPU, or of a core for each process since the look before."""

    measured: Literal["gpu", "cpu"]
    percent: float

    @property
    def idle(self) -> bool:
        return self.percent < IDLE_PERCENT


Meter = Callable[[float], Reading | None]
"""Looks at a Unix time; None where it can't tell."""


def gpu_meter() -> Meter:
    """Of the busiest GPU of the node. What nvidia-smi can't tell is not known."""

    def look(now: float) -> Reading | None:
        command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, timeout=_SMI_SECONDS, check=True)
            return Reading("gpu", max(float(line) for line in answer.stdout.split()))
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            print(f"activity: nvidia-smi: {error}", flush=True)
            return None

    return look


def cpu_meter(root: int, processes: int, spent: Callable[[int], float] | None = None) -> Meter:
    """Of the process `root` and all below it, as percent of a core for each of the job's `processes`."""
    take = tree_seconds if spent is None else spent
    before: tuple[float, float] | None = None

    def look(now: float) -> Reading | None:
        nonlocal before
        earlier, before = before, (now, take(root))
        if earlier is None or now <= earlier[0]:
            return None
        seconds = before[1] - earlier[1]
        # Less than before: a process has left the tree with what it had spent. Who knows what it does: no sign of rest.
        return None if seconds < 0 else Reading("cpu", 100 * seconds / (now - earlier[0]) / processes)

    return look


def tree_seconds(root: int, proc: Path = Path("/proc")) -> float:
    """Processor seconds of a process and all below it; those that ended count at the parent that saw their end.

    Fields of /proc/PID/stat as proc_pid_stat(5) numbers them: 4 ppid, 14 utime, 15 stime, 16 cutime, 17 cstime.
    """
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()  # a name may hold anything, also brackets
        except OSError:  # it has ended meanwhile
            continue
        children.setdefault(int(fields[1]), []).append(int(entry.name))
        ticks[int(entry.name)] = sum(int(field) for field in fields[11:15])
    return sum(ticks.get(process, 0) for process in _below(root, children)) / _TICKS


def _below(root: int, children: Mapping[int, list[int]]) -> list[int]:
    found = [root]
    for process in found:
        found += children.get(process, [])
    return found


class Activity:
    """One attempt on this node: since when it has been idle, and when that is worth a word."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._looked_at = self._told_at = self._idle_since = 0.0

    def look(self, now: float) -> tuple[Reading, float | None] | None:
        """What to tell, if anything: the last look, and since when no look saw work; None there: it works again."""
        if now - self._looked_at < LOOK_SECONDS:
            return None
        before, self._looked_at = self._looked_at, now
        reading = self._meter(now)
        if reading is None:
            self._idle_since = 0.0  # not known: whatever was idle may have worked since
            return None
        if not reading.idle:
            told, self._idle_since, self._told_at = self._told_at, 0.0, 0.0
            return (reading, None) if told else None
        # By processor time all the while since the look before was idle; of a GPU only this moment is known.
        self._idle_since = self._idle_since or (before if before and reading.measured == "cpu" else now)
        if now - self._told_at < TELL_SECONDS:
            return None
        self._told_at = now
        return reading, self._idle_since
