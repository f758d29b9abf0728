"""Finding and ending all processes of a rehearsal: they bear its folder in their environment."""

import signal
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

MARK = "TRAINYARD_REHEARSAL"


def marked(folder: Path, node: Path | None = None) -> list[psutil.Process]:
    """Processes that bear the mark of this rehearsal's folder; with `node`, those of that node's root only."""
    found = []
    for process in psutil.process_iter():
        try:
            environment = process.environ()
        except (psutil.Error, OSError):  # gone meanwhile, or another user's
            continue
        if environment.get(MARK) != str(folder):
            continue
        if node is None or environment.get("TRAINYARD_ROOT") == str(node):
            found.append(process)
    return found


def lives(process: psutil.Process) -> bool:
    """Whether it still runs: one that ends while we look does not, and a zombie has only its parent to wait for."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        try:
            process.send_signal(signal.SIGKILL)
        except psutil.Error:
            continue


def kill_marked(folder: Path, node: Path | None = None, seconds: float = 30.0) -> int:
    """End every marked process with SIGKILL, also those that come while we look. Returns how many there were.

    Raises TimeoutError when some are still there after `seconds`.
    """
    ended, deadline = set(), time.monotonic() + seconds
    while left := [one for one in marked(folder, node) if lives(one)]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {[one.pid for one in left]} of {node or folder} outlive SIGKILL")
        ended |= {one.pid for one in left}
        kill(left)
        psutil.wait_procs(left, timeout=0.2)
    return len(ended)
