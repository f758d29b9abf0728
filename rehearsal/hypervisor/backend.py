"""What a back-end of the hypervisor is: a way to make a machine out of an instance."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from trainyard.models.report import BackendName, NotRehearsed, Scaled


@dataclass(frozen=True, kw_only=True)
class NodeSpec:
    """One instance as EC2 describes it to whoever boots it. `made_of`: the instance that its image was made of."""

    id: str
    address: str
    user_data: str
    metadata_endpoint: str
    environment: Mapping[str, str]
    made_of: str | None = None


class Backend(Protocol):
    """Machines by instance id, from `with` to its end. Every call returns soon; `stop` and `kill` may be repeated."""

    @property
    def name(self) -> BackendName:
        """As the user asks for it."""

    def __enter__(self) -> Self:
        """Make what all machines share."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End every machine, and what they shared."""

    def reach(self, url: str) -> str:
        """The URL under which machines reach a server that listens on this machine's loopback."""

    def plug(self, instance: str, address: str) -> socket.socket:
        """Give an instance its place in the network, before it boots; its value listens there for metadata requests."""

    def boot(self, spec: NodeSpec) -> None:
        """Power a machine on with its user-data."""

    def stop(self, instance: str) -> None:
        """Ask it to shut down, as EC2 does at termination; end it for good after a grace time."""

    def kill(self, instance: str) -> None:
        """Cut the power: no process of it lives when this returns."""

    def alive(self, instance: str) -> bool:
        """Whether the machine is powered on."""

    def switched_itself_off(self, instance: str) -> bool:
        """Whether the machine has powered off by its own command, and nobody else's."""

    def log_tails(self) -> str:
        """The last that every machine logged, also those that are off."""

    def scaled(self) -> list[Scaled]:
        """Substitutions that this back-end has made so far."""

    def not_rehearsed(self) -> list[NotRehearsed]:
        """What this back-end has left out so far."""
