"""Nodes as booted machines: instances with systemd, a journal, packages and a network of their own."""

import hashlib
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from rehearsal.hypervisor.backend import NodeSpec
from rehearsal.hypervisor.nspawn.cgroups import Cgroup
from rehearsal.hypervisor.nspawn.image import base_root
from rehearsal.hypervisor.nspawn.machine import Hardware, Machine, empty
from rehearsal.hypervisor.nspawn.network import NAMES, Network, ip
from trainyard.models.report import BackendName, NotRehearsed, Scaled

LOG_LINES = 40
_WHY_SWITCH = "nodes are on one switch, with no way out"
_WHY_CONTAINER = "a container has the kernel of this machine"


def mark_of(folder: Path) -> str:
    """Eight hexadecimal digits that tell a rehearsal's namespaces and groups from another's."""
    return hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:8]


class NspawnBackend:
    """Machines under `folder`/nodes, from `with` to its end."""

    name: BackendName = "nspawn"

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self.folder, self._say = folder, say
        self.machines: dict[str, Machine] = {}
        self.disk_mib: int | None = None  # of machines that boot from now on; none: as much as the folder's disk has
        self.network = Network(mark_of(folder))
        self._base: Path | None = None

    def __enter__(self) -> Self:
        self._base = base_root(self._say)
        self.network.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for instance in self.machines:
            self.kill(instance)
        self.network.close()

    def reach(self, url: str) -> str:
        return self.network.reach(url)

    def plug(self, instance: str, address: str) -> socket.socket:
        return self.network.plug(instance, address)

    def boot(self, spec: NodeSpec) -> None:
        assert self._base is not None
        namespace = self.network.node(spec.id)
        layers = [self._base]
        if spec.made_of is not None:  # it is off: nothing writes to its disk any more
            source = self.machines[spec.made_of]
            layers = [source.disk, *source.hardware.layers]
        hardware = Hardware(
            layers=layers,
            namespace=namespace,
            name=namespace,
            shared=[Path(sys.prefix)],
            disk_mib=self.disk_mib,
        )
        machine = self.machines[spec.id] = Machine(self.folder / "nodes" / spec.id, hardware)
        machine.prepare(system_files(spec))
        machine.start()

    def stop(self, instance: str) -> None:
        self.machines[instance].stop()

    def kill(self, instance: str) -> None:
        self.machines[instance].kill()
        self.network.unplug(instance)

    def alive(self, instance: str) -> bool:
        return instance in self.machines and self.machines[instance].alive()

    def switched_itself_off(self, instance: str) -> bool:
        return instance in self.machines and self.machines[instance].switched_itself_off

    def log_tails(self) -> str:
        parts = [f"--- {name}\n{machine.journal(LOG_LINES)}" for name, machine in sorted(self.machines.items())]
        return "\n".join(parts)

    def scaled(self) -> list[Scaled]:
        if not self.machines:
            return []
        return [
            Scaled(what="EC2 instances", by="booted systemd-nspawn machines", why="no virtual machine is needed here"),
            Scaled(what="the image of the nodes", by="Debian 12 by debootstrap", why="AWS's images are in AWS"),
            Scaled(what="the VPC's network", by="a switch in a namespace of its own", why="this machine is one"),
            Scaled(what="security groups, routes and NAT", by="none: every node reaches every other", why=_WHY_SWITCH),
            Scaled(what="a node's kernel: modules, net.core.*mem_max, vm.*", by="this machine's", why=_WHY_CONTAINER),
            Scaled(what="SSM Session Manager", by="nothing: nobody logs in", why="its agent speaks to AWS alone"),
            Scaled(what="TLS of AWS's endpoints", by="plain HTTP", why="the emulated AWS is local"),
        ]

    def not_rehearsed(self) -> list[NotRehearsed]:
        return []  # what a stack needs beyond this, hardware, its nodes' plays tell


def system_files(spec: NodeSpec) -> dict[str, str]:
    """What an instance has by itself and a container has not: its name, and where AWS is."""
    host = f"ip-{spec.address.replace('.', '-')}"
    environment = " ".join(f'"{name}={value}"' for name, value in spec.environment.items())
    return {
        "/etc/hosts": f"127.0.0.1 localhost\n{spec.address} {host}.ec2.internal {host}\n",
        "/etc/resolv.conf": "",  # an unreachable name server costs gloo ten seconds
        "/etc/systemd/system.conf.d/60-rehearsal.conf": f"[Manager]\nDefaultEnvironment={environment}\n",
    }


def sweep(folder: Path) -> int:
    """End the machines that an earlier rehearsal in this folder left. Returns how many processes that were."""
    hub, ended = Network(mark_of(folder)).hub, 0
    names = sorted(path.name for path in NAMES.glob(f"{hub}*")) if NAMES.exists() else []
    for name in names:
        ended += empty(name)
        Cgroup(name).remove()
        ip(f"netns del {name}")
    return ended
