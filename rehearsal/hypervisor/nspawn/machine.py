"""One booted machine: an overlay on the base image, systemd as process 1, a network namespace and control groups."""

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
from rehearsal.hypervisor.nspawn.network import NETNS_FOLDER

REBOOT_EXIT_CODE = 133  # exit code of systemd-nspawn when the machine requests a reboot
KILL_TIMEOUT_SECONDS = 30.0
_FILLER = "/var/tmp/filler"  # noqa: S108 (inside the machine)
MACHINE_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin", "HOME": "/root", "LANG": "C.UTF-8"}
_STOP_WITH_PARENT = ("setpriv", "--pdeathsig", "TERM")  # the machine shuts down when the hypervisor's process ends


@dataclass(frozen=True, kw_only=True)
class MachineSpec:
    """Disk layers, network namespace and name of a machine.

    `shared`: folders that are mounted read-only at the same path. `disk_mib`: size of its writable disk, which is then
    in memory and lost on reboot; None: the writable disk is a folder, limited by the free space there.
    """

    layers: Sequence[Path]
    namespace: str
    name: str
    shared: Sequence[Path] = ()
    disk_mib: int | None = None


class Machine:
    """A machine whose writable disk is `folder`/upper. It starts again after a reboot, unless it is stopped."""

    def __init__(self, folder: Path, spec: MachineSpec) -> None:
        self.folder, self.spec = folder, spec
        self.cgroup = Cgroup(spec.name)
        self.boots = 0
        self.has_powered_off = False
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping, self._restarting = threading.Event(), False
        self._thread = threading.Thread(target=self._supervise, name=f"machine {spec.name}", daemon=True)

    @property
    def disk(self) -> Path:
        """The folder with the files that the machine has written."""
        return self.folder / "upper"

    def prepare(self, files: Mapping[str, str]) -> None:
        """Write files (path -> text) to the disk before the first boot."""
        for name in ("upper", "work", "root"):
            (self.folder / name).mkdir(parents=True)
        for shared in self.spec.shared:
            # The user of the job needs access, and in the image /root is private.
            for parent in reversed(Path(shared).relative_to("/").parents):
                (self.disk / parent).mkdir(mode=0o755, exist_ok=True)
        for path, text in files.items():
            file = self.disk / path.removeprefix("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    def start(self) -> None:
        """Boot the machine."""
        self.cgroup.create()
        self._power_on()
        self._thread.start()

    def _power_on(self) -> None:
        with (self.folder / "console.log").open("ab") as console:
            self._process = subprocess.Popen(
                # The overlay is mounted in a private mount namespace, so no mount remains afterwards.
                [
                    *_STOP_WITH_PARENT,
                    "unshare",
                    "--mount",
                    "--propagation",
                    "private",
                    "/bin/sh",
                    "-ec",
                    self._script(),
                ],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "SYSTEMD_NSPAWN_API_VFS_WRITABLE": "network"},
            )
        self.boots += 1

    def _script(self) -> str:
        spec, root = self.spec, self.folder / "root"
        upper, work = self.disk, self.folder / "work"
        lines = [self.cgroup.join_command()]
        if spec.disk_mib is not None:
            # A separate small disk, so that a test can fill it without filling the disk of this computer.
            disk = self.folder / "disk"
            lines.append(f"mkdir -p {_quote(disk)}; mount -t tmpfs -o size={spec.disk_mib}m disk {_quote(disk)}")
            lines.append(
                f"mkdir {_quote(disk)}/upper {_quote(disk)}/work; cp -a {_quote(upper)}/. {_quote(disk)}/upper"
            )
            upper, work = disk / "upper", disk / "work"
        layers = ":".join(str(layer) for layer in spec.layers)
        options = f"lowerdir={layers},upperdir={upper},workdir={work}"
        lines.append(f"mount -t overlay overlay -o {_quote(options)} {_quote(root)}")
        command = [
            *("systemd-nspawn", "-q", "-D", str(root), "--boot", "--register=no", "--keep-unit"),
            f"--network-namespace-path={NETNS_FOLDER / spec.namespace}",
            "--capability=CAP_NET_ADMIN",  # for the packet filter of its namespace, as with --private-network
            *(f"--machine={spec.name}", "--resolv-conf=off", "--timezone=off", "--console=read-only"),
            *(f"--bind-ro={path}" for path in spec.shared),
        ]
        lines.append(f"exec {shlex.join(command)}")
        return "\n".join(lines)

    def _supervise(self) -> None:
        while True:
            assert self._process is not None
            code = self._process.wait()
            is_restart, self._restarting = code == REBOOT_EXIT_CODE or self._restarting, False
            if not is_restart or self._stopping.is_set():
                self.has_powered_off = code == 0 and not self._stopping.is_set()
                return
            self._power_on()

    def is_running(self) -> bool:
        """Return whether the machine is on or rebooting."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Request a shutdown, as a power button does."""
        self._stopping.set()
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Power the machine off: none of its processes runs when this returns.

        Its processes are found by their network namespace. nspawn is not killed, because the machine would continue to
        run without it; nspawn ends when process 1 of the machine has ended.
        """
        self._stopping.set()
        kill_namespace_processes(self.spec.namespace)
        if self._process is not None:
            try:
                self._process.wait(KILL_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._thread.ident is not None:
            self._thread.join()
        self.cgroup.remove()

    def crash(self) -> None:
        """Kill all processes of the machine at once, as a host failure does. The machine stays off."""
        self._stopping.set()
        signal_processes(namespace_processes(self.spec.namespace), signal.SIGKILL)

    def restart(self) -> None:
        """Power the machine off at once, and on again. A disk in memory is lost."""
        self._restarting = True
        self.init_process().kill()  # the kernel kills the other processes of the machine

    def fill_disk(self, is_full: bool) -> None:
        """Use all free space of a disk with a limited size (`disk_mib`), or free it again. The machine must run."""
        assert self.spec.disk_mib is not None, "the disk of this machine is that of the computer"
        if is_full:
            self.run_command("/bin/sh", "-c", f"cat /dev/zero > {_FILLER}")  # until no space is left
        else:
            self.run_command("rm", "-f", _FILLER)

    def remove(self) -> None:
        """Delete the machine's folder, including its disk."""
        shutil.rmtree(self.folder)

    def read_journal(self, lines: int = 200) -> str:
        """Return the last lines of the machine's journal, also after the machine has stopped."""
        folder = self.disk / "var/log/journal"
        command = ["journalctl", "-D", str(folder), "--no-pager", "-q", "-o", "short", "-n", str(lines)]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    def run_command(
        self, *command: str, timeout_seconds: float = 60.0, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the machine as root. Only the rehearsal and its tests use this, never the product."""
        return subprocess.run(
            enter_command(self.init_process().pid, *command),
            env=MACHINE_ENVIRONMENT,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )

    def write_file(self, path: str, text: str) -> None:
        """Write a file in the running machine."""
        self.run_command("/bin/sh", "-ec", f"mkdir -p {_quote(Path(path).parent)}; cat > {_quote(path)}", stdin=text)

    def systemd_state(self) -> str:
        """Return the state of its systemd: `running` or `degraded` after the boot, `off` while the machine is off."""
        try:
            return self.run_command("systemctl", "is-system-running").stdout.strip()
        except LookupError:
            return "off"

    def init_process(self) -> psutil.Process:
        """Return process 1 of the machine, as a process of this computer. Raises LookupError if it does not run."""
        if self._process is not None and self._process.poll() is None:
            for child in psutil.Process(self._process.pid).children():
                return child
        raise LookupError(f"the machine {self.spec.name} is off")


def enter_command(process: int, *command: str) -> list[str]:
    """Return a command that runs `command` as root in the machine whose process 1 has this id on this computer."""
    return ["nsenter", "--target", str(process), "--all", "--root", "--wdns=/", "--", *command]


def namespace_processes(namespace: str) -> list[int]:
    """Return the ids of the processes in a network namespace."""
    process = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False)
    return [int(pid) for pid in process.stdout.split()]


def kill_namespace_processes(namespace: str) -> int:
    """Kill all processes in a network namespace. Returns their number; raises TimeoutError if some still run."""
    deadline, killed = time.monotonic() + KILL_TIMEOUT_SECONDS, set[int]()
    while pids := namespace_processes(namespace):
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {pids} of the machine {namespace} still run after SIGKILL")
        signal_processes(pids, signal.SIGKILL)
        killed.update(pids)
        time.sleep(0.02)
    return len(killed)


def signal_processes(pids: Sequence[int], number: int) -> None:
    """Send a signal to processes. Processes that have ended are ignored."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _quote(path: object) -> str:
    return shlex.quote(str(path))
