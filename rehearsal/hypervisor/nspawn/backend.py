"""The nspawn backend: nodes are systemd-nspawn containers with systemd, a journal, packages and a network namespace."""

import hashlib
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from rehearsal.hypervisor.backend import NodeSpec
from rehearsal.hypervisor.nspawn.cgroups import Cgroup
from rehearsal.hypervisor.nspawn.image import base_root
from rehearsal.hypervisor.nspawn.machine import (
    Machine,
    MachineSpec,
    kill_namespace_processes,
    namespace_processes,
)
from rehearsal.hypervisor.nspawn.network import NETNS_FOLDER, Network, run_ip
from trainyard.models.report import BackendName, NotRehearsed, Substitution

LOG_LINES = 40
DISK_MIB = 2048  # several times as much as a node writes
_REASON_NETWORK = "all nodes are connected to one bridge without a route to other networks"
_REASON_KERNEL = "a container uses the kernel of this machine"


def namespace_suffix(folder: Path) -> str:
    """Return eight hexadecimal digits that make the namespaces and control groups of a rehearsal unique."""
    return hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:8]


class NspawnBackend:
    """Runs machines under `folder`/nodes while the context manager is entered.

    `disk_mib` limits the disks of machines that boot later; None: the free space of the folder's disk.
    """

    name: BackendName = "nspawn"

    def __init__(self, folder: Path, log: Callable[[str], None]) -> None:
        self.folder, self._log = folder, log
        self.machines: dict[str, Machine] = {}
        self.disk_mib: int | None = None
        self.network = Network(namespace_suffix(folder))
        self._base: Path | None = None

    def __enter__(self) -> Self:
        self._base = base_root(self._log)
        self.network.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for instance in self.machines:
            self.kill(instance)
        self.network.close()

    def url_for_nodes(self, url: str) -> str:
        """Return the URL under which nodes reach a server on this computer's loopback address."""
        return self.network.url_for_nodes(url)

    def attach_network(self, instance: str, address: str) -> socket.socket:
        """Create the network namespace of an instance. Returns the listener of its metadata service."""
        return self.network.attach_network(instance, address)

    def boot(self, spec: NodeSpec) -> None:
        """Boot a machine from the base image, or from the disk of the machine that its image was created from."""
        assert self._base is not None
        namespace = self.network.namespace_name(spec.id)
        layers = [self._base]
        if spec.image_source is not None:  # that machine is off: nothing writes to its disk any more
            source = self.machines[spec.image_source]
            layers = [source.disk, *source.spec.layers]
        machine_spec = MachineSpec(
            layers=layers,
            namespace=namespace,
            name=namespace,
            shared=[Path(sys.prefix)],
            disk_mib=self.disk_mib,
        )
        machine = self.machines[spec.id] = Machine(self.folder / "nodes" / spec.id, machine_spec)
        machine.prepare(system_files(spec))
        machine.start()

    def stop(self, instance: str) -> None:
        """Request a shutdown of the machine."""
        if instance in self.machines:  # else it has not booted
            self.machines[instance].stop()

    def kill(self, instance: str) -> None:
        """Power the machine off and delete its network namespace."""
        if instance in self.machines:
            self.machines[instance].kill()
        self.network.detach_network(instance)

    def processes(self, instance: str) -> list[psutil.Process]:
        """Return the processes of the machine."""
        processes = []
        for number in namespace_processes(self.network.namespace_name(instance)):
            with suppress(psutil.NoSuchProcess):
                processes.append(psutil.Process(number))
        return processes

    def restart(self, instance: str) -> None:
        """Power the machine off, and boot it again from its disk."""
        self.machines[instance].restart()

    def isolate(self, instance: str, is_isolated: bool) -> None:
        """Let the bridge drop the packets between isolated machines, or forward them again."""
        self.network.isolate(instance, is_isolated)

    def limit_disks(self) -> None:
        """Let machines that boot later have a disk in memory."""
        self.disk_mib = DISK_MIB

    def allow_clock_steps(self) -> None:
        """Raise NotImplementedError: the machines share the clock of this kernel."""
        raise NotImplementedError

    def fill_disk(self, instance: str, is_full: bool) -> None:
        """Use all free space of the machine's disk with a file, or delete the file."""
        self.machines[instance].fill_disk(is_full)

    def step_clock(self, instance: str, seconds: float) -> None:
        """Raise NotImplementedError: the machines share the clock of this kernel."""
        raise NotImplementedError

    def is_running(self, instance: str) -> bool:
        """Return whether the machine is powered on."""
        return instance in self.machines and self.machines[instance].is_running()

    def has_powered_off(self, instance: str) -> bool:
        """Return whether the machine has powered itself off."""
        return instance in self.machines and self.machines[instance].has_powered_off

    def log_tails(self) -> str:
        """Return the last journal lines of all machines."""
        parts = [f"--- {name}\n{machine.read_journal(LOG_LINES)}" for name, machine in sorted(self.machines.items())]
        return "\n".join(parts)

    def substitutions(self) -> list[Substitution]:
        """Return the substitutions of this backend; none before a machine has booted."""
        if not self.machines:
            return []
        substitutions = [
            ("EC2 instances", "systemd-nspawn containers", "no virtual machine is needed"),
            ("the AMI of the nodes", "Debian 12 by debootstrap", "AMIs are available in AWS only"),
            ("the network of the VPC", "a bridge in a network namespace", "all nodes run on this machine"),
            (
                "security groups; routes and NAT, except of requests to AWS",
                "none: every node reaches every other node",
                _REASON_NETWORK,
            ),
            ("a node's kernel: modules, net.core.*mem_max, vm.*", "the kernel of this machine", _REASON_KERNEL),
            ("SSM Session Manager", "nothing", "its agent connects to AWS only"),
            ("TLS of AWS endpoints", "plain HTTP", "the emulated AWS runs on this machine"),
        ]
        return [
            Substitution(original=original, replacement=replacement, reason=reason)
            for original, replacement, reason in substitutions
        ]

    def not_rehearsed(self) -> list[NotRehearsed]:
        """Return an empty list: the nodes' playbooks report the roles that need missing hardware."""
        return []


def system_files(spec: NodeSpec) -> dict[str, str]:
    """Return files that an EC2 instance has but a container does not: host name and AWS endpoints. Path -> text."""
    host = f"ip-{spec.address.replace('.', '-')}"
    environment = " ".join(f'"{name}={value}"' for name, value in spec.environment.items())
    return {
        "/etc/hosts": f"127.0.0.1 localhost\n{spec.address} {host}.ec2.internal {host}\n",
        "/etc/resolv.conf": "",  # with an unreachable name server, Gloo waits ten seconds
        "/etc/systemd/system.conf.d/60-rehearsal.conf": f"[Manager]\nDefaultEnvironment={environment}\n",
    }


def remove_leftovers(folder: Path) -> int:
    """Kill the machines of an earlier rehearsal in this folder. Returns the number of killed processes."""
    prefix, killed = Network(namespace_suffix(folder)).switch_namespace, 0
    names = sorted(path.name for path in NETNS_FOLDER.glob(f"{prefix}*")) if NETNS_FOLDER.exists() else []
    for name in names:
        killed += kill_namespace_processes(name)
        Cgroup(name).remove()
        run_ip(f"netns del {name}")
    return killed
