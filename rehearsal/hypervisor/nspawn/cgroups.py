"""A control group for each node: its processor time, and what it may open. Both hierarchies of the kernel are known."""

import errno
import time
from contextlib import suppress
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
_PARENT = "trainyard"
_EMPTY_SECONDS = 10.0
_DEVICES = ("c 1:3 rwm", "c 1:5 rwm", "c 1:7 rwm", "c 1:8 rwm", "c 1:9 rwm", "c 5:* rwm", "c 136:* rwm")


def unified() -> bool:
    """Whether this machine has version 2 alone."""
    return (ROOT / "cgroup.controllers").exists()


class Cgroup:
    """The groups of one node. The first process joins by itself before it becomes the machine (`join`)."""

    def __init__(self, name: str) -> None:
        tops = [ROOT] if unified() else sorted({part.resolve() for part in ROOT.iterdir() if part.is_dir()})
        # cpuset takes no process before it is given processors, and bounds nothing here.
        self.folders = [top / _PARENT / name for top in tops if "cpuset" not in top.name.split(",")]

    def make(self) -> None:
        for folder in self.folders:
            _made(folder)
            if (folder / "devices.deny").exists():
                (folder / "devices.deny").write_text("a")
                for device in _DEVICES:
                    (folder / "devices.allow").write_text(device)

    def join(self) -> str:
        """A line of shell by which a process enters."""
        return "; ".join(f"echo $$ > {folder}/cgroup.procs" for folder in self.folders)

    def cpu_seconds(self) -> float:
        """Processor time of all that ran in it so far."""
        for folder in self.folders:
            if (usage := folder / "cpuacct.usage").exists():
                return int(usage.read_text()) / 1e9
            if (stat := folder / "cpu.stat").exists() and unified():
                fields = dict(line.split() for line in stat.read_text().splitlines())
                return int(fields["usage_usec"]) / 1e6
        raise FileNotFoundError(f"no processor accounting in {self.folders}")

    def remove(self) -> None:
        """Once nothing runs in it: a booted machine leaves groups of its own below."""
        for folder in self.folders:
            if folder.exists():
                for below in sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True):
                    _remove(below)
                _remove(folder)
            with suppress(OSError):  # another rehearsal's are in it
                folder.parent.rmdir()


def _remove(folder: Path) -> None:
    """The kernel keeps a group busy for a moment after its last process has ended. Raises OSError where it stays so."""
    deadline = time.monotonic() + _EMPTY_SECONDS
    while True:
        try:
            return folder.rmdir()
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.05)


def _made(folder: Path) -> None:
    """Make it, below a folder that whoever leaves last takes along: between two steps it may be gone again."""
    while not folder.exists():
        with suppress(FileNotFoundError):
            folder.parent.mkdir(exist_ok=True)
            if unified():
                _delegate(folder.parent.parent)
                _delegate(folder.parent)
            folder.mkdir(exist_ok=True)


def _delegate(folder: Path) -> None:
    (folder / "cgroup.subtree_control").write_text("+cpu +memory +pids")
