"""Finds and kills the processes of a rehearsal: an environment variable of each names the rehearsal's folder."""

import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil

REHEARSAL_VARIABLE = "TRAINYARD_REHEARSAL"


def environments() -> Iterator[tuple[psutil.Process, dict[str, str]]]:
    """Yield the processes of this machine whose environment can be read, each with its environment."""
    for process in psutil.process_iter():
        try:
            environment = process.environ()
        except (psutil.Error, OSError):  # it has ended, or belongs to another user
            continue
        yield process, environment


def find_processes(folder: Path, node: Path | None = None) -> list[psutil.Process]:
    """Return the processes of the rehearsal in `folder`; with `node`, only those with this node root."""
    processes = []
    for process, environment in environments():
        if environment.get(REHEARSAL_VARIABLE) != str(folder):
            continue
        if node is None or environment.get("TRAINYARD_ROOT") == str(node):
            processes.append(process)
    return processes


def find_rank_log(process: psutil.Process) -> Path | None:
    """Return the file with the stderr of a process if it is a rank, as a path on its node.

    torchrun redirects the stderr of each rank to a file in a folder with the number of the rank on its node.
    """
    try:
        log = Path(f"/proc/{process.pid}/fd/2").readlink()
    except OSError:  # it has ended
        return None
    return log if log.name == "stderr.log" and log.parent.name.isdigit() else None


def is_alive(process: psutil.Process) -> bool:
    """Return whether the process runs. A zombie, or a process that ends during the check, does not."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def command_line(process: psutil.Process) -> list[str]:
    """Return the command line of a process; that of a process that has ended is empty."""
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def kill(processes: Iterable[psutil.Process]) -> None:
    """Send SIGKILL to the processes. Processes that have ended are ignored."""
    for process in processes:
        send_signal(process, signal.SIGKILL)


def send_signal(process: psutil.Process, number: int) -> None:
    """Send a signal to a process. A process that has ended is ignored."""
    with suppress(psutil.Error):
        process.send_signal(number)


def kill_rehearsal_processes(folder: Path, node: Path | None = None, timeout_seconds: float = 30.0) -> int:
    """Kill all processes of the rehearsal in `folder`, including processes that start meanwhile. Returns their number.

    Raises TimeoutError when processes still run after `timeout_seconds`.
    """
    killed, deadline = set(), time.monotonic() + timeout_seconds
    while remaining := [process for process in find_processes(folder, node) if is_alive(process)]:
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"processes {[process.pid for process in remaining]} of {node or folder} still run after SIGKILL"
            )
        killed |= {process.pid for process in remaining}
        kill(remaining)
        psutil.wait_procs(remaining, timeout=0.2)
    return len(killed)
