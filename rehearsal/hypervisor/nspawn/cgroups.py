"""Control groups of booted nodes: they measure CPU time and restrict device access. Supports cgroup v1 and v2."""

import errno
import time
from contextlib import suppress
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
_PARENT = "trainyard"
_REMOVE_TIMEOUT_SECONDS = 10.0
_ALLOWED_DEVICES = ("c 1:3 rwm", "c 1:5 rwm", "c 1:7 rwm", "c 1:8 rwm", "c 1:9 rwm", "c 5:* rwm", "c 136:* rwm")


def is_unified() -> bool:
    """Return whether this machine uses cgroup v2 only."""
    return (ROOT / "cgroup.controllers").exists()


class Cgroup:
    """The control groups of one node. The first process joins by `join_command` before it starts the machine."""

    def __init__(self, name: str) -> None:
        hierarchies = [ROOT] if is_unified() else sorted({part.resolve() for part in ROOT.iterdir() if part.is_dir()})
        # A cpuset group accepts no process until CPUs are assigned, and no CPU limit is needed.
        self.folders = [top / _PARENT / name for top in hierarchies if "cpuset" not in top.name.split(",")]

    def create(self) -> None:
        """Create the groups and restrict their devices (cgroup v1)."""
        for folder in self.folders:
            _create(folder)
            if (folder / "devices.deny").exists():
                (folder / "devices.deny").write_text("a")
                for device in _ALLOWED_DEVICES:
                    (folder / "devices.allow").write_text(device)

    def join_command(self) -> str:
        """Return a shell command by which a process joins the groups."""
        return "; ".join(f"echo $$ > {folder}/cgroup.procs" for folder in self.folders)

    def cpu_seconds(self) -> float:
        """Return the CPU time of all processes of the groups, in seconds."""
        for folder in self.folders:
            if (usage := folder / "cpuacct.usage").exists():
                return int(usage.read_text()) / 1e9
            if (stat := folder / "cpu.stat").exists() and is_unified():
                fields = dict(line.split() for line in stat.read_text().splitlines())
                return int(fields["usage_usec"]) / 1e6
        raise FileNotFoundError(f"no CPU accounting in {self.folders}")

    def remove(self) -> None:
        """Remove the groups and their subgroups, which a booted machine creates. No process may run in them."""
        for folder in self.folders:
            if folder.exists():
                for subgroup in sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True):
                    _remove(subgroup)
                _remove(folder)
            with suppress(OSError):  # it has groups of another rehearsal
                folder.parent.rmdir()


def _remove(folder: Path) -> None:
    """Remove a group. The kernel keeps it busy for a moment after its last process has ended; raises OSError later."""
    deadline = time.monotonic() + _REMOVE_TIMEOUT_SECONDS
    while True:
        try:
            return folder.rmdir()
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.05)


def _create(folder: Path) -> None:
    """Create a group. Its parent may be removed by another rehearsal between two steps, so this repeats them."""
    while not folder.exists():
        with suppress(FileNotFoundError):
            folder.parent.mkdir(exist_ok=True)
            if is_unified():
                _enable_controllers(folder.parent.parent)
                _enable_controllers(folder.parent)
            folder.mkdir(exist_ok=True)


def _enable_controllers(folder: Path) -> None:
    (folder / "cgroup.subtree_control").write_text("+cpu +memory +pids")
