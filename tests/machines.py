"""Booted machines without a cloud: what single roles are tried on, as root."""

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rehearsal.hypervisor.nspawn.backend import mark_of
from rehearsal.hypervisor.nspawn.image import base_root
from rehearsal.hypervisor.nspawn.machine import Hardware, Machine
from rehearsal.hypervisor.nspawn.network import Network
from tests.polling import eventually

ROOT = Path(__file__).parents[1]
ADDRESS = "10.0.0.{}"
PLAY_SECONDS = 600.0
_TASK = re.compile(r"^TASK \[(.*)\] \*+$")
_STATUS = re.compile(r"^(ok|changed|skipping|fatal|failed): \[localhost\]")


@dataclass(frozen=True)
class Play:
    """How a play ended. `changed`: names of the tasks that changed something, `role : task`, in their order."""

    code: int
    changed: tuple[str, ...]
    told: str

    @property
    def failure(self) -> str:
        """What the failing task said."""
        found = re.search(r"^fatal: \[localhost\].*?(?=^PLAY RECAP|\Z)", self.told, re.S | re.M)
        return found[0] if found else ""


class Booted:
    """A machine of a test, with its own network and no metadata service."""

    def __init__(self, machine: Machine, network: Network) -> None:
        self.machine, self.network = machine, network

    def sh(self, script: str, seconds: float = 60.0) -> str:
        """Its stdout. Fails the test where the script fails."""
        done = self.machine.run("/bin/sh", "-ec", script, seconds=seconds)
        assert done.returncode == 0, f"{script}: {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def role(self, name: str, **variables: Any) -> Play:
        """Run one role of the tree as a play of its own, on the facts that preflight gathers."""
        facts = {"ansible.builtin.setup": {"gather_subset": ["!all", "!min", "distribution", "virtual"]}}
        include = {"ansible.builtin.include_role": {"name": name}, "vars": variables}
        return self.play([facts, include])

    def play(self, tasks: list[dict[str, Any]]) -> Play:
        play = [{"hosts": "localhost", "gather_facts": False, "tasks": tasks}]
        file = "/root/play.yml"
        self.put(file, yaml.safe_dump(play))
        done = self.machine.run(
            *("env", f"ANSIBLE_CONFIG={ROOT}/playbooks/ansible.cfg", "PYTHONDONTWRITEBYTECODE="),
            *(f"{sys.prefix}/bin/ansible-playbook", "-i", "localhost,", "-c", "local"),
            *("-e", json.dumps({"ansible_python_interpreter": "/usr/bin/python3"}), file),
            seconds=PLAY_SECONDS,
        )
        changed, task = [], ""
        for line in done.stdout.splitlines():
            if found := _TASK.match(line):
                task = found[1]
            elif (status := _STATUS.match(line)) and status[1] == "changed" and task not in changed:
                changed.append(task)
        return Play(done.returncode, tuple(changed), done.stdout + done.stderr)

    def reboot(self) -> None:
        boots = self.machine.boots
        self.machine.run("systemctl", "reboot")
        eventually(
            lambda: self.machine.boots > boots and self.machine.state() in {"running", "degraded"},
            "the machine's second boot",
        )

    def put(self, path: str, text: str) -> None:
        """Write a file in the running machine."""
        self.machine.write(path, text)


@contextmanager
def booted(folder: Path, files: dict[str, str] | None = None, disk_mib: int | None = None) -> Iterator[Booted]:
    """A machine that has booted, until the end of `with`."""
    network = Network(mark_of(folder))
    network.open()
    network.plug("i-0", ADDRESS.format(10)).close()
    hardware = Hardware(
        layers=[base_root(print)],
        namespace=network.node("i-0"),
        name=network.node("i-0"),
        shared=[Path(sys.prefix), ROOT / "playbooks"],
        disk_mib=disk_mib,
    )
    machine = Machine(folder / "machine", hardware)
    own = {"/etc/cloud/cloud-init.disabled": "", "/etc/resolv.conf": "", "/etc/hosts": "127.0.0.1 localhost\n"}
    machine.prepare(own | (files or {}))
    machine.start()
    try:
        eventually(lambda: machine.state() in {"running", "degraded"}, "the machine's boot")
        yield Booted(machine, network)
    finally:
        machine.kill()
        network.unplug("i-0")
        network.close()
        machine.remove()
