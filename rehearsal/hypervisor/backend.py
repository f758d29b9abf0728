"""What a back-end of the hypervisor is: a way to make a machine out of an instance."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from contract.report import NotRehearsed, Scaled


@dataclass(frozen=True, kw_only=True)
class NodeSpec:
    """One instance as EC2 describes it to whoever boots it."""

    id: str
    address: str
    user_data: str
    metadata_endpoint: str
    environment: Mapping[str, str]


class Backend(Protocol):
    """Machines by instance id. Every call returns soon; `stop` and `kill` may be repeated."""

    def boot(self, spec: NodeSpec) -> None:
        """Power a machine on with its user-data."""

    def stop(self, instance: str) -> None:
        """Ask it to shut down, as EC2 does at termination; end it for good after a grace time."""

    def kill(self, instance: str) -> None:
        """Cut the power: no process of it lives when this returns."""

    def alive(self, instance: str) -> bool:
        """Whether the machine is powered on."""

    def scaled(self) -> list[Scaled]:
        """Substitutions that this back-end has made so far."""

    def not_rehearsed(self) -> list[NotRehearsed]:
        """What this back-end has left out so far."""
