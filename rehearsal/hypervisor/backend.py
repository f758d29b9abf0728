"""Interface of the hypervisor's backends: a backend runs EC2 instances as machines on this computer."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

import psutil

from trainyard.models.report import BackendName, NotRehearsed, Substitution


@dataclass(frozen=True, kw_only=True)
class NodeSpec:
    """The description of an instance to boot.

    `image_source`: id of the instance that its image was created from. `gpus`: number of GPUs of its type.
    """

    id: str
    address: str
    user_data: str
    metadata_endpoint: str
    environment: Mapping[str, str]
    image_source: str | None = None
    gpus: int = 0


class Backend(Protocol):
    """Machines by instance id, while the context manager is entered.

    No method blocks for long; `stop` and `kill` may be called again.
    """

    @property
    def name(self) -> BackendName:
        """Name of the backend, as in --backend."""

    def __enter__(self) -> Self:
        """Create the resources that all machines share."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill all machines and remove the shared resources."""

    def url_for_nodes(self, url: str) -> str:
        """Return the URL under which machines reach a server on this computer's loopback address."""

    def attach_network(self, instance: str, address: str) -> socket.socket:
        """Create the network of an instance before it boots. Returns the listening socket of its metadata service."""

    def boot(self, spec: NodeSpec) -> None:
        """Boot a machine with its user data."""

    def stop(self, instance: str) -> None:
        """Request a shutdown, as EC2 does at termination."""

    def kill(self, instance: str) -> None:
        """Power the machine off: none of its processes runs when this returns."""

    def processes(self, instance: str) -> list[psutil.Process]:
        """Return the processes of the machine."""

    def restart(self, instance: str) -> None:
        """Power the machine off, and boot it again from its disk."""

    def isolate(self, instance: str, is_isolated: bool) -> None:
        """Drop the packets between isolated machines. Raises NotImplementedError where machines share a network."""

    def limit_disks(self) -> None:
        """Let machines that boot later have small disks, so that `fill_disk` does not fill this computer's."""

    def allow_clock_steps(self) -> None:
        """Let machines that boot later have clocks that `step_clock` can change."""

    def fill_disk(self, instance: str, is_full: bool) -> None:
        """Use all free space of the machine's disk. Raises NotImplementedError where machines share a disk."""

    def step_clock(self, instance: str, seconds: float) -> None:
        """Add seconds to the system time of the machine. Raises NotImplementedError where the kernel has one clock."""

    def is_running(self, instance: str) -> bool:
        """Return whether the machine is powered on."""

    def has_powered_off(self, instance: str) -> bool:
        """Return whether the machine has powered itself off."""

    def log_tails(self) -> str:
        """Return the last log lines of all machines, including stopped machines."""

    def substitutions(self) -> list[Substitution]:
        """Return the substitutions that this backend has made."""

    def not_rehearsed(self) -> list[NotRehearsed]:
        """Return the parts of a cluster that this backend does not run."""
