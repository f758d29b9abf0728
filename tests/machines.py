"""Booted machines without an emulated account, for tests of single roles. They need root."""

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rehearsal.hypervisor.nspawn.backend import namespace_suffix
from rehearsal.hypervisor.nspawn.image import base_root
from rehearsal.hypervisor.nspawn.machine import Machine, MachineSpec
from rehearsal.hypervisor.nspawn.network import Network
from tests.polling import eventually

ROOT = Path(__file__).parents[1]
ADDRESS = "10.0.0.{}"
PLAYBOOK_TIMEOUT_SECONDS = 600.0
_TASK = re.compile(r"^TASK \[(.*)\] \*+$")
_STATUS = re.compile(r"^(ok|changed|skipping|fatal|failed): \[localhost\]")


@dataclass(frozen=True)
class PlaybookResult:
    """The result of a playbook run. `changed_tasks`: names (`role : task`) of the tasks with changes, in order."""

    exit_code: int
    changed_tasks: tuple[str, ...]
    output: str

    @property
    def failure(self) -> str:
        """The output of the failed task."""
        match = re.search(r"^fatal: \[localhost\].*?(?=^PLAY RECAP|\Z)", self.output, re.S | re.M)
        return match[0] if match else ""


class BootedMachine:
    """A machine with a network but without a metadata service."""

    def __init__(self, machine: Machine, network: Network) -> None:
        self.machine, self.network = machine, network

    def run_script(self, script: str, timeout_seconds: float = 60.0) -> str:
        """Run a shell script in the machine. Returns its stdout; fails the test if the script fails."""
        process = self.machine.run_command("/bin/sh", "-ec", script, timeout_seconds=timeout_seconds)
        assert process.returncode == 0, f"{script}: {process.returncode}: {process.stdout}{process.stderr}"
        return process.stdout

    def run_role(self, name: str, **variables: Any) -> PlaybookResult:
        """Run one role in a separate play, with the facts that the role preflight gathers."""
        facts = {"ansible.builtin.setup": {"gather_subset": ["!all", "!min", "distribution", "virtual"]}}
        include = {"ansible.builtin.include_role": {"name": name}, "vars": variables}
        return self.run_tasks([facts, include])

    def run_tasks(self, tasks: list[dict[str, Any]]) -> PlaybookResult:
        """Run tasks in a play on localhost."""
        play = [{"hosts": "localhost", "gather_facts": False, "tasks": tasks}]
        file = "/root/play.yml"
        self.write_file(file, yaml.safe_dump(play))
        process = self.machine.run_command(
            *("env", f"ANSIBLE_CONFIG={ROOT}/playbooks/ansible.cfg", "PYTHONDONTWRITEBYTECODE="),
            *(f"{sys.prefix}/bin/ansible-playbook", "-i", "localhost,", "-c", "local"),
            *("-e", json.dumps({"ansible_python_interpreter": "/usr/bin/python3"}), file),
            timeout_seconds=PLAYBOOK_TIMEOUT_SECONDS,
        )
        changed, task = [], ""
        for line in process.stdout.splitlines():
            if match := _TASK.match(line):
                task = match[1]
            elif (status := _STATUS.match(line)) and status[1] == "changed" and task not in changed:
                changed.append(task)
        return PlaybookResult(process.returncode, tuple(changed), process.stdout + process.stderr)

    def reboot(self) -> None:
        """Reboot the machine and wait until it has booted."""
        boots = self.machine.boots
        self.machine.run_command("systemctl", "reboot")
        eventually(
            lambda: self.machine.boots > boots and self.machine.systemd_state() in {"running", "degraded"},
            "the reboot of the machine",
        )

    def write_file(self, path: str, text: str) -> None:
        """Write a file in the running machine."""
        self.machine.write_file(path, text)


@contextmanager
def boot_machine(
    folder: Path, files: dict[str, str] | None = None, disk_mib: int | None = None
) -> Iterator[BootedMachine]:
    """Boot a machine; it is removed on exit. `files`: path -> text. `disk_mib`: size of its disk."""
    network = Network(namespace_suffix(folder))
    network.open()
    network.attach_network("i-0", ADDRESS.format(10)).close()
    hardware = MachineSpec(
        layers=[base_root(print)],
        namespace=network.namespace_name("i-0"),
        name=network.namespace_name("i-0"),
        shared=[Path(sys.prefix), ROOT / "playbooks"],
        disk_mib=disk_mib,
    )
    machine = Machine(folder / "machine", hardware)
    system_files = {"/etc/cloud/cloud-init.disabled": "", "/etc/resolv.conf": "", "/etc/hosts": "127.0.0.1 localhost\n"}
    machine.prepare(system_files | (files or {}))
    machine.start()
    try:
        eventually(lambda: machine.systemd_state() in {"running", "degraded"}, "the boot of the machine")
        yield BootedMachine(machine, network)
    finally:
        machine.kill()
        network.detach_network("i-0")
        network.close()
        machine.remove()
