"""Replaces systemd on a node of the process backend: `python -m rehearsal.hypervisor.process.init`, one per node.

It runs the node's `runcmd`, serves `systemctl` and `systemd-run` on a socket, and supervises service units as systemd
does: restart, stop with a timeout, watchdog, kill remaining processes, reboot. It uses the node's unit files unchanged.
End of file on stdin powers it off.
"""

import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import IO

import psutil

from rehearsal.hypervisor.process import units
from rehearsal.hypervisor.process.gpus import reset_gpus, set_module_path
from rehearsal.hypervisor.process.units import Unit
from rehearsal.hypervisor.processes import send_signal

POLL_SECONDS = 0.1
SHUTDOWN_TIMEOUT_SECONDS = 60
BOOT_ID = "proc/sys/kernel/random/boot_id"  # random(4): it differs in each boot
ENABLED = "etc/systemd/system/multi-user.target.wants"  # links to the units that start at each boot, as of systemctl(1)
KEPT_FILES = {"init", "runcmd.json", "nvml.json"}  # in <root>/run; they belong to the emulation
REBOOT = "--reboot"  # option: start the enabled units instead of `runcmd`
SOCKET = "init"  # in <root>/run, used as a relative path because a socket's path has at most 107 characters


@dataclass
class Service:
    """A unit and its process.

    `restart_time`, `kill_time` and `watchdog_time` are monotonic times. `restart_requested`: start it again after it
    has stopped. `transient`: systemd-run has created it. `invocation`: value of INVOCATION_ID in its processes.
    `is_preparing`: the process is that of ExecStartPre.
    """

    unit: Unit
    state: str = "inactive"
    process: "subprocess.Popen[bytes] | None" = None
    exit_code: int = 0
    restart_time: float | None = None
    kill_time: float | None = None
    restart_requested: bool = False
    watchdog_time: float | None = None
    transient: bool = False
    invocation: str = ""
    is_preparing: bool = False

    def active_state(self) -> str:
        """Return systemd's ActiveState."""
        if self.state == "active" and (self.unit.oneshot or self.is_preparing):
            return "activating"
        return "active" if self.state == "exited" else self.state


class Init:
    """The node's init process. It runs as long as stdin is open."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.services: dict[str, Service] = {}
        self.commands: list[subprocess.Popen[bytes]] = []
        self.shutting_down = self.rebooting = False
        self.deadline: float | None = None  # of a shutdown
        write_boot_id(root)
        (root / "run").mkdir(exist_ok=True)
        os.chdir(root / "run")
        # Ansible quotes neither the path of systemctl nor that of a script, and `root` may contain spaces.
        alias = f"/proc/{os.getpid()}/cwd/.."
        for name in ("PATH", "ANSIBLE_REMOTE_TEMP"):
            os.environ[name] = os.environ[name].replace(str(root), alias)
        Path(SOCKET).unlink(missing_ok=True)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(SOCKET)
        self.listener.listen(8)
        # For sd_notify(3), with the sender's process id; an abstract address, which `root` does not make too long.
        self.notifications = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notifications.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.notifications.bind(f"\0trainyard-{uuid.uuid4().hex}")

    # commands

    def handle_systemd_run(self, arguments: list[str]) -> None:
        """Create and start a transient unit. Raises ValueError if a unit of that name exists."""
        unit = units.parse_run(arguments)
        if unit.name in self.services:
            raise ValueError(f"Unit {unit.name} was already loaded or has a fragment file.")
        self.services[unit.name] = service = Service(unit, transient=True)
        self.start(service)

    def handle_systemctl(self, arguments: list[str]) -> tuple[int, str]:
        """Run one systemctl command. Returns its exit code and stdout."""
        flags = {argument for argument in arguments if argument.startswith("-")}
        verb, *operands = [argument for argument in arguments if argument not in flags]
        names = self.expand([name if name.endswith(".service") else f"{name}.service" for name in operands])
        if verb == "daemon-reload":
            for name, service in self.services.items():
                service.unit = units.load(name, self.root) or service.unit
            return 0, ""
        if verb in ("reboot", "poweroff"):
            self.rebooting, self.shutting_down = verb == "reboot", verb == "poweroff"
            return 0, ""
        if verb == "is-active":
            states = [self.services[name].active_state() for name in names if name in self.services]
            return (0 if "active" in states else 3), "\n".join(states or ["inactive"]) + "\n"
        for name in names:
            if name not in self.services:
                unit = units.load(name, self.root)
                if unit is None:
                    return (0, "LoadState=not-found\nActiveState=inactive\nMainPID=0\n") if verb == "show" else (4, "")
                self.services[name] = Service(unit)
            service = self.services[name]
            match verb:
                case "show":
                    has_main = service.process is not None and not service.is_preparing
                    state, pid = service.active_state(), service.process.pid if service.process and has_main else 0
                    lines = ["LoadState=loaded", f"ActiveState={state}", "UnitFileState=static", f"MainPID={pid}"]
                    return 0, "\n".join([*lines, f"ExecMainStatus={service.exit_code}"]) + "\n"
                case "is-enabled":
                    return 0, "static\n"
                case "enable":
                    self.enable(service.unit)
                    if "--now" in flags:
                        self.start(service)
                case "start":
                    self.start(service)
                case "stop":
                    self.stop(service)
                case "kill" if "--signal=SIGKILL" in flags:
                    send_signals(unit_processes(service), signal.SIGKILL)
                case "restart":
                    service.restart_requested = service.process is not None
                    self.stop(service)
                    if not service.restart_requested:
                        self.start(service)
                case _:
                    return 1, ""
        return 0, ""

    def expand(self, names: Sequence[str]) -> list[str]:
        """Replace patterns by the loaded units that match, as systemctl(1) does."""
        matching = [name for pattern in names if "*" in pattern for name in self.services if fnmatch(name, pattern)]
        return [*(name for name in names if "*" not in name), *matching]

    def enable(self, unit: Unit) -> None:
        """Start a unit at each boot. A unit without an [Install] section cannot be enabled (systemd.unit(5))."""
        if unit.can_be_enabled:
            (self.root / ENABLED).mkdir(parents=True, exist_ok=True)
            (self.root / ENABLED / unit.name).touch()

    def start(self, service: Service) -> None:
        """Start the process of a service unless it runs."""
        if service.process is not None or service.state == "exited":
            return
        service.is_preparing, service.invocation = bool(service.unit.preparation), uuid.uuid4().hex
        self.start_process(service, service.unit.preparation or service.unit.command)

    def start_process(self, service: Service, command: tuple[str, ...]) -> None:
        """Start a process of a service, which becomes its main process."""
        unit = service.unit
        variables = {"INVOCATION_ID": service.invocation}
        if unit.watchdog_seconds:
            variables["NOTIFY_SOCKET"] = "@" + self.notifications.getsockname()[1:].decode()
            variables["WATCHDOG_USEC"] = str(int(unit.watchdog_seconds * 1e6))
            service.watchdog_time = time.monotonic() + unit.watchdog_seconds
        log = (self.root / "var/log" / f"{unit.name}.log").open("ab")
        with log:
            service.process = subprocess.Popen(
                [self.node_path(argument) for argument in command],
                cwd=unit.folder or self.root,
                env=os.environ | unit.environment | variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        service.state, service.restart_time, service.kill_time = "active", None, None

    def node_path(self, argument: str) -> str:
        """Return the path below the node's root if the argument is a path that exists there, else the argument."""
        path = self.root / argument.removeprefix("/")
        return str(path) if argument.startswith("/") and path.exists() else argument

    def stop(self, service: Service) -> None:
        """Send SIGTERM to a service; `poll_services` kills it after its stop timeout."""
        service.restart_time = None
        if service.process is None:
            service.state = "inactive"
            return
        if service.kill_time is None:
            service.state = "deactivating"
            service.kill_time = time.monotonic() + service.unit.stop_timeout_seconds
            main = [psutil.Process(service.process.pid)]
            send_signals(main if service.unit.kill_mode_mixed else unit_processes(service), signal.SIGTERM)

    # supervision

    def poll_services(self) -> None:
        """Handle exited processes, stop timeouts and due restarts."""
        now = time.monotonic()
        for service in list(self.services.values()):
            if service.process is not None:
                if service.watchdog_time is not None and now > service.watchdog_time:
                    self.abort(service)
                if service.kill_time is not None and now > service.kill_time:
                    send_signals(unit_processes(service), signal.SIGKILL)
                code = service.process.poll()
                if code is not None:
                    self.handle_exit(service, code)
            elif service.restart_time is not None and now > service.restart_time and self.deadline is None:
                self.start(service)
        self.commands = [command for command in self.commands if command.poll() is None]

    def abort(self, service: Service) -> None:
        """End a service that has not sent WATCHDOG=1 in time.

        systemd sends SIGABRT, then SIGCONT, also to a suspended process, and SIGKILL after TimeoutAbortSec=, by default
        TimeoutStopSec=. Sources: https://www.freedesktop.org/software/systemd/man/latest/systemd.service.html
        (WatchdogSec=), https://www.freedesktop.org/software/systemd/man/latest/systemd.kill.html (KillSignal=)
        """
        assert service.process is not None
        service.watchdog_time = None
        service.kill_time = time.monotonic() + service.unit.stop_timeout_seconds
        for number in (signal.SIGABRT, signal.SIGCONT):
            service.process.send_signal(number)

    def handle_notification(self) -> None:
        """Read one message of sd_notify(3); those of other processes than the main one are ignored (NotifyAccess=)."""
        message, control, _, _ = self.notifications.recvmsg(4096, socket.CMSG_SPACE(struct.calcsize("3i")))
        pid, is_ping = struct.unpack("3i", control[0][2])[0], b"WATCHDOG=1" in message.splitlines()
        for service in self.services.values():
            is_sender = service.process is not None and service.process.pid == pid
            if is_ping and is_sender and service.watchdog_time is not None:
                service.watchdog_time = time.monotonic() + service.unit.watchdog_seconds

    def handle_exit(self, service: Service, code: int) -> None:
        """Set the state of a service whose process has exited, according to its restart policy."""
        unit, is_stopping = service.unit, service.state == "deactivating"
        if service.is_preparing and not is_stopping and code == 0:
            service.is_preparing = False
            self.start_process(service, unit.command)
            return
        service.process, service.exit_code, service.kill_time, service.watchdog_time = None, code, None, None
        send_signals(unit_processes(service), signal.SIGKILL)
        if service.restart_requested:
            service.restart_requested = False
            self.start(service)
        elif is_stopping:
            service.state = "inactive"
        elif unit.restart == "always" or (unit.restart == "on-failure" and code != 0):
            service.state = "activating"
            service.restart_time = time.monotonic() + unit.restart_seconds
        elif code != 0:
            service.state = "failed"
        else:
            service.state = "exited" if unit.oneshot and unit.remain_after_exit else "inactive"
        if service.transient:
            del self.services[unit.name]

    def start_runcmd(self, commands: list[list[str]], log: IO[bytes]) -> None:
        """Start the `runcmd` commands of the user data, one after the other as in cloud-init, in the background."""
        script = "\n".join(" ".join(_quote(argument) for argument in command) for command in commands)
        self.commands.append(
            subprocess.Popen(["/bin/sh", "-c", script], cwd=self.root, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        )

    def run(self) -> int:
        """Run until end of file on stdin (power off) or the end of a shutdown (SIGTERM). Returns the exit code."""
        while True:
            ready, _, _ = select.select([self.listener, self.notifications, sys.stdin], [], [], POLL_SECONDS)
            if sys.stdin in ready and not os.read(sys.stdin.fileno(), 4096):
                return 1
            if self.listener in ready:
                self.handle_connection()
            if self.notifications in ready:
                self.handle_notification()
            self.poll_services()
            if (self.shutting_down or self.rebooting) and self.have_services_stopped():
                if self.shutting_down:
                    return 0
                self.boot_again()

    def have_services_stopped(self) -> bool:
        """Stop all services at the first call, and return whether the shutdown can continue.

        Source: shutdown.target and reboot.target of
        https://www.freedesktop.org/software/systemd/man/latest/systemd.special.html
        """
        if self.deadline is None:
            self.deadline = time.monotonic() + SHUTDOWN_TIMEOUT_SECONDS
            for service in list(self.services.values()):
                service.restart_requested = False
                self.stop(service)
        return time.monotonic() > self.deadline or all(each.process is None for each in self.services.values())

    def boot_again(self) -> None:
        """End what still runs, and start the enabled units, as at a reboot.

        The instance keeps its id, address and disk
        (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/ec2-instance-reboot.html). cloud-init runs `runcmd` at the
        first boot only (https://docs.cloud-init.io/en/latest/reference/modules.html#runcmd). /run is empty (hier(7)),
        the kernel log new, and the GPUs are reset.
        """
        send_signals(psutil.Process().children(recursive=True), signal.SIGKILL)
        self.services, self.rebooting, self.deadline = {}, False, None
        for path in (self.root / "run").iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name not in KEPT_FILES:
                path.unlink()
        (self.root / "dev/kmsg").unlink(missing_ok=True)
        reset_gpus(self.root)
        write_boot_id(self.root)
        for link in sorted((self.root / ENABLED).iterdir()):
            unit = units.load(link.name, self.root)
            assert unit is not None
            self.services[unit.name] = Service(unit)
            self.start(self.services[unit.name])

    def handle_connection(self) -> None:
        """Read one command from the socket and respond."""
        connection, _ = self.listener.accept()
        with connection, connection.makefile("rwb") as stream:
            code, text, message = 0, "", ""
            try:
                program, *arguments = json.loads(stream.readline())
                if program == "systemd-run":
                    self.handle_systemd_run(arguments)
                else:
                    code, text = self.handle_systemctl(arguments)
            except (ValueError, KeyError, OSError) as error:
                code, message = 1, f"{error}\n"
            stream.write(json.dumps({"code": code, "text": text, "error": message}).encode() + b"\n")


def write_boot_id(root: Path) -> None:
    """Give the node another boot id."""
    file = root / BOOT_ID
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{uuid.uuid4()}\n")


def _quote(argument: str) -> str:
    return "'" + argument.replace("'", "'\\''") + "'"


def unit_processes(service: Service) -> list[psutil.Process]:
    """Return the processes of a unit, as systemd finds them by the unit's control group.

    Orphaned processes become children of this process (subreaper). Their environment shows to which unit they belong:
    processes inherit INVOCATION_ID. torchrun starts its workers in new sessions, so process groups do not find them.
    Source: https://www.freedesktop.org/software/systemd/man/latest/systemd.exec.html#%24INVOCATION_ID
    """
    processes = []
    for child in psutil.Process().children():
        with suppress(psutil.Error):  # it has ended
            if child.environ().get("INVOCATION_ID") == service.invocation:
                processes += [child, *child.children(recursive=True)]
    return processes


def send_signals(processes: Iterable[psutil.Process], number: int) -> None:
    """Send a signal to each of the processes."""
    for process in processes:
        send_signal(process, number)


def become_subreaper() -> None:
    """Adopt orphaned descendants: prctl(PR_SET_CHILD_SUBREAPER)."""
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0)


def main() -> int:
    """Run the init process of the node whose root is TRAINYARD_ROOT. Returns the exit code."""
    root = Path(os.environ["TRAINYARD_ROOT"])
    set_module_path(root)  # the present one is for this process: the node runs the code of its bundle
    become_subreaper()
    init = Init(root)

    def shut_down(*_: object) -> None:
        init.shutting_down = True

    signal.signal(signal.SIGTERM, shut_down)
    with (root / "var/log/cloud-init-output.log").open("ab") as log:
        if REBOOT in sys.argv:
            init.boot_again()
        else:
            init.start_runcmd(json.loads((root / "run/runcmd.json").read_text()), log)
        code = init.run()
    send_signals(psutil.Process().children(recursive=True), signal.SIGKILL)
    return code


if __name__ == "__main__":
    sys.exit(main())
