"""Stands in for systemd on a node that is a folder: `python -m rehearsal.hypervisor.process.init`, one a node.

It runs the node's `runcmd`, serves `systemctl` on a socket, supervises service units as systemd would (restart, stop
with a grace time, kill what is left). The units are the node's own, unchanged. End of file on stdin is the power cut.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

from rehearsal.hypervisor.process import units
from rehearsal.hypervisor.process.units import Unit

TICK_SECONDS = 0.1
SOCKET = "init"  # in <root>/run; reached by a relative path, since a socket's name has 107 characters at most


@dataclass
class Service:
    """A unit and the process that runs for it."""

    unit: Unit
    state: str = "inactive"
    process: "subprocess.Popen[bytes] | None" = None
    code: int = 0
    restart_at: float | None = None
    kill_at: float | None = None
    again: bool = False  # start once it has stopped

    def active(self) -> str:
        if self.state == "active" and self.unit.oneshot:
            return "activating"
        return "active" if self.state == "exited" else self.state


class Init:
    """The node's process 1, for as long as stdin is open."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.services: dict[str, Service] = {}
        self.commands: list[subprocess.Popen[bytes]] = []
        self.ending = False
        (root / "run").mkdir(exist_ok=True)
        os.chdir(root / "run")
        Path(SOCKET).unlink(missing_ok=True)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(SOCKET)
        self.listener.listen(8)

    # what systemctl asks for

    def serve(self, line: list[str]) -> tuple[int, str]:
        """One systemctl call: exit code and stdout."""
        flags = {word for word in line if word.startswith("-")}
        verb, *rest = [word for word in line if word not in flags]
        names = [name if name.endswith(".service") else f"{name}.service" for name in rest]
        if verb == "daemon-reload":
            for name, known in self.services.items():
                known.unit = units.load(name, self.root) or known.unit
            return 0, ""
        for name in names:
            if name not in self.services:
                found = units.load(name, self.root)
                if found is None:
                    return (0, "LoadState=not-found\nActiveState=inactive\n") if verb == "show" else (4, "")
                self.services[name] = Service(found)
            service = self.services[name]
            match verb:
                case "show":
                    state, pid = service.active(), service.process.pid if service.process else 0
                    lines = ["LoadState=loaded", f"ActiveState={state}", "UnitFileState=static", f"MainPID={pid}"]
                    return 0, "\n".join([*lines, f"ExecMainStatus={service.code}"]) + "\n"
                case "is-active":
                    return (0 if service.active() == "active" else 3), service.active() + "\n"
                case "is-enabled":
                    return 0, "static\n"
                case "enable" if "--now" not in flags:
                    continue  # a folder boots once: nothing comes of it
                case "start" | "enable":
                    self.start(service)
                case "stop":
                    self.stop(service)
                case "restart":
                    service.again = service.process is not None
                    self.stop(service)
                    if not service.again:
                        self.start(service)
                case _:
                    return 1, ""
        return 0, ""

    def start(self, service: Service) -> None:
        if service.process is not None or service.state == "exited":
            return
        unit = service.unit
        log = (self.root / "var/log" / f"{unit.name}.log").open("ab")
        with log:
            service.process = subprocess.Popen(
                [self.here(word) for word in unit.command],
                cwd=unit.folder or self.root,
                env=os.environ | unit.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        service.state, service.restart_at, service.kill_at = "active", None, None

    def here(self, word: str) -> str:
        """A path of the node: its own file where it has one, else the machine's."""
        own = self.root / word.removeprefix("/")
        return str(own) if word.startswith("/") and own.exists() else word

    def stop(self, service: Service) -> None:
        service.restart_at = None
        if service.process is None:
            service.state = "inactive"
            return
        if service.kill_at is None:
            service.state = "deactivating"
            service.kill_at = time.monotonic() + service.unit.stop_seconds
            main = psutil.Process(service.process.pid)
            others = [] if service.unit.mixed else main.children(recursive=True)
            for process in [main, *others]:
                signal_to(process, signal.SIGTERM)

    # what time brings

    def tick(self) -> None:
        now = time.monotonic()
        for service in list(self.services.values()):
            if service.process is not None:
                if service.kill_at is not None and now > service.kill_at:
                    kill_tree(service.process.pid)
                code = service.process.poll()
                if code is not None:
                    self.ended(service, code)
            elif service.restart_at is not None and now > service.restart_at and not self.ending:
                self.start(service)
        self.commands = [command for command in self.commands if command.poll() is None]

    def ended(self, service: Service, code: int) -> None:
        unit, stopping = service.unit, service.state == "deactivating"
        service.process, service.code, service.kill_at = None, code, None
        living = [one.process for one in self.services.values() if one.process is not None]
        end_orphans({process.pid for process in [*living, *self.commands]})
        if service.again:
            service.again = False
            self.start(service)
        elif stopping:
            service.state = "inactive"
        elif unit.restart == "always" or (unit.restart == "on-failure" and code != 0):
            service.state = "activating"
            service.restart_at = time.monotonic() + unit.restart_seconds
        elif code != 0:
            service.state = "failed"
        else:
            service.state = "exited" if unit.oneshot and unit.remain else "inactive"

    def runcmd(self, commands: list[list[str]], log: IO[bytes]) -> None:
        """The user-data's commands, one after the other as cloud-init runs them, beside the supervision."""
        script = "\n".join(" ".join(_quoted(word) for word in command) for command in commands)
        self.commands.append(
            subprocess.Popen(["/bin/sh", "-c", script], cwd=self.root, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        )

    def run(self) -> int:
        """Until the power is cut (end of file on stdin) or shutdown is asked for (SIGTERM)."""
        deadline = None
        while True:
            ready, _, _ = select.select([self.listener, sys.stdin], [], [], TICK_SECONDS)
            if sys.stdin in ready and not os.read(sys.stdin.fileno(), 4096):
                return 1
            if self.listener in ready:
                self.answer()
            self.tick()
            if self.ending:
                if deadline is None:
                    deadline = time.monotonic() + 60
                    for service in self.services.values():
                        self.stop(service)
                if time.monotonic() > deadline or all(one.process is None for one in self.services.values()):
                    return 0

    def answer(self) -> None:
        connection, _ = self.listener.accept()
        with connection, connection.makefile("rwb") as stream:
            try:
                code, text = self.serve(json.loads(stream.readline()))
            except (ValueError, KeyError, OSError) as error:
                code, text = 1, f"{error}\n"
            stream.write(json.dumps({"code": code, "text": text}).encode() + b"\n")


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


def signal_to(process: psutil.Process, number: int) -> None:
    try:
        process.send_signal(number)
    except psutil.Error:
        return


def kill_tree(pid: int) -> None:
    try:
        main = psutil.Process(pid)
        family = [main, *main.children(recursive=True)]
    except psutil.Error:
        return
    for process in family:
        signal_to(process, signal.SIGKILL)


def end_orphans(known: set[int]) -> None:
    """What a unit's main process left behind, as systemd ends the rest of its control group.

    Orphans became our children (subreaper); torchrun's workers have sessions of their own, so no group finds them.
    """
    for process in psutil.Process().children():
        if process.pid not in known:
            kill_tree(process.pid)


def become_subreaper() -> None:
    """Orphans of the node stay its own: prctl(PR_SET_CHILD_SUBREAPER)."""
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0)


def main() -> int:
    root = Path(os.environ["TRAINYARD_ROOT"])
    del os.environ["PYTHONPATH"]  # ours alone: the node runs what its bundle brought
    become_subreaper()
    init = Init(root)

    def end(*_: object) -> None:
        init.ending = True

    signal.signal(signal.SIGTERM, end)
    with (root / "var/log/cloud-init-output.log").open("ab") as log:
        init.runcmd(json.loads((root / "run/runcmd.json").read_text()), log)
        code = init.run()
    for process in psutil.Process().children(recursive=True):
        signal_to(process, signal.SIGKILL)
    return code


if __name__ == "__main__":
    sys.exit(main())
