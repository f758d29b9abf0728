"""One booted machine: an overlay on the base root, systemd as its process 1, its own network, journal and groups."""

import os
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from rehearsal.hypervisor.nspawn.cgroups import Cgroup
from rehearsal.hypervisor.nspawn.network import NAMES

REBOOT = 133  # systemd-nspawn's exit code when the machine asks for one
KILL_SECONDS = 30.0
_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin", "HOME": "/root", "LANG": "C.UTF-8"}
_WITH_US = ("setpriv", "--pdeathsig", "TERM")  # a machine shuts down when who boots it has died


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """What a machine is made of. `shared`: folders that it sees at their own place and can't write to.

    `disk_mib`: size of what it can write, in memory, gone with a reboot; none: as much as the folder's own disk.
    """

    layers: Sequence[Path]
    namespace: str
    name: str
    shared: Sequence[Path] = ()
    disk_mib: int | None = None


class Machine:
    """A machine whose disk is `folder`/upper. It is started again when it reboots, until it is stopped or killed."""

    def __init__(self, folder: Path, hardware: Hardware) -> None:
        self.folder, self.hardware = folder, hardware
        self.cgroup = Cgroup(hardware.name)
        self.boots = 0
        self.switched_itself_off = False
        self._process: subprocess.Popen[bytes] | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._tend, name=f"machine {hardware.name}", daemon=True)

    @property
    def disk(self) -> Path:
        """What it has written so far, as it lies on this machine's disk."""
        return self.folder / "upper"

    def prepare(self, files: Mapping[str, str]) -> None:
        """Write files (path -> text) to its disk before its first boot."""
        for name in ("upper", "work", "root"):
            (self.folder / name).mkdir(parents=True)
        for path, text in files.items():
            file = self.disk / path.removeprefix("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    def start(self) -> None:
        self.cgroup.make()
        self._power_on()
        self._thread.start()

    def _power_on(self) -> None:
        with (self.folder / "console.log").open("ab") as console:
            self._process = subprocess.Popen(
                # The overlay is mounted where only the machine sees it: no mount is left to clear away.
                [*_WITH_US, "unshare", "--mount", "--propagation", "private", "/bin/sh", "-ec", self._script()],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "SYSTEMD_NSPAWN_API_VFS_WRITABLE": "network"},
            )
        self.boots += 1

    def _script(self) -> str:
        hardware, root = self.hardware, self.folder / "root"
        upper, work = self.disk, self.folder / "work"
        lines = [self.cgroup.join()]
        if hardware.disk_mib is not None:
            # Small and its own: what a full disk does must not fill this machine's.
            disk = self.folder / "disk"
            lines.append(f"mkdir -p {_quoted(disk)}; mount -t tmpfs -o size={hardware.disk_mib}m disk {_quoted(disk)}")
            lines.append(
                f"mkdir {_quoted(disk)}/upper {_quoted(disk)}/work; cp -a {_quoted(upper)}/. {_quoted(disk)}/upper"
            )
            upper, work = disk / "upper", disk / "work"
        layers = ":".join(str(layer) for layer in hardware.layers)
        options = f"lowerdir={layers},upperdir={upper},workdir={work}"
        lines.append(f"mount -t overlay overlay -o {_quoted(options)} {_quoted(root)}")
        command = [
            *("systemd-nspawn", "-q", "-D", str(root), "--boot", "--register=no", "--keep-unit"),
            f"--network-namespace-path={NAMES / hardware.namespace}",
            *(f"--machine={hardware.name}", "--resolv-conf=off", "--timezone=off", "--console=read-only"),
            *(f"--bind-ro={path}" for path in hardware.shared),
        ]
        lines.append(f"exec {shlex.join(command)}")
        return "\n".join(lines)

    def _tend(self) -> None:
        while True:
            assert self._process is not None
            code = self._process.wait()
            if code != REBOOT or self._ending.is_set():
                self.switched_itself_off = code == 0 and not self._ending.is_set()
                return
            self._power_on()

    def alive(self) -> bool:
        """Whether it is on, or about to be on again."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Ask it to shut down, as a power button does."""
        self._ending.set()
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Cut the power: nothing of it runs when this returns.

        What runs in the machine is told by its network namespace. nspawn itself ends when the machine's process 1 has:
        were it killed first, the machine would live on.
        """
        self._ending.set()
        empty(self.hardware.namespace)
        if self._process is not None:
            try:
                self._process.wait(KILL_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._thread.ident is not None:
            self._thread.join()
        self.cgroup.remove()

    def crash(self) -> None:
        """SIGKILL to its process 1, as a host that dies: the machine stays off."""
        self._ending.set()
        end(inhabitants(self.hardware.namespace))

    def remove(self) -> None:
        """Its disk too."""
        shutil.rmtree(self.folder)

    def journal(self, lines: int = 200) -> str:
        """The end of its journal, also a dead machine's."""
        where = self.disk / "var/log/journal"
        command = ["journalctl", "-D", str(where), "--no-pager", "-q", "-o", "short", "-n", str(lines)]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    def run(self, *command: str, seconds: float = 60.0, given: str | None = None) -> subprocess.CompletedProcess[str]:
        """A command in the running machine, as root: the rehearsal's own eye, no way of the product's."""
        return subprocess.run(
            ["nsenter", "--target", str(self.init().pid), "--all", "--root", "--wdns=/", "--", *command],
            env=_ENVIRONMENT,
            input=given,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    def write(self, path: str, text: str) -> None:
        """Write a file as it runs."""
        self.run("/bin/sh", "-ec", f"mkdir -p {_quoted(Path(path).parent)}; cat > {_quoted(path)}", given=text)

    def state(self) -> str:
        """Of its systemd: `running` or `degraded` once it has booted; `off` while it is not on."""
        try:
            return self.run("systemctl", "is-system-running").stdout.strip()
        except LookupError:
            return "off"

    def init(self) -> psutil.Process:
        """Its process 1, as this machine sees it. Raises LookupError while there is none."""
        if self._process is not None and self._process.poll() is None:
            for child in psutil.Process(self._process.pid).children():
                return child
        raise LookupError(f"the machine {self.hardware.name} is not on")


def inhabitants(namespace: str) -> list[int]:
    """Processes in a network namespace."""
    done = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False)
    return [int(pid) for pid in done.stdout.split()]


def empty(namespace: str) -> int:
    """End all that runs in a network namespace; how many processes that were. Raises TimeoutError for what outlives."""
    deadline, ended = time.monotonic() + KILL_SECONDS, set[int]()
    while pids := inhabitants(namespace):
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {pids} of the machine {namespace} outlive SIGKILL")
        end(pids)
        ended.update(pids)
        time.sleep(0.02)
    return len(ended)


def end(pids: Sequence[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _quoted(path: object) -> str:
    return shlex.quote(str(path))
