"""The hardware catalog: what the stacks' instance types are made of. The data stands in `catalog.json`, dated."""

from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field

from contract.base import Contract


class Gpu(Contract):
    """The GPUs of an instance type."""

    model: str = Field(description="NVIDIA's model name.")
    count: int = Field(gt=0, description="GPUs per instance.")
    memory_gib: int = Field(gt=0, description="Memory of each, GiB.")


class NetworkCard(Contract):
    """One network card, as DescribeInstanceTypes lists it."""

    index: int = Field(ge=0, description="Network card index.")
    interfaces: int = Field(gt=0, description="Network interfaces that the card bears.")
    efa: bool = Field(description="Whether the card bears an EFA interface.")
    ena: bool = Field(description="Whether the card bears a plain interface.")


class InterfaceSpec(Contract):
    """One network interface of a launch template."""

    card: int = Field(ge=0, description="NetworkCardIndex.")
    device: int = Field(ge=0, description="DeviceIndex on that card.")
    type: Literal["interface", "efa-only"] = Field(description="InterfaceType.")


class InstanceType(Contract):
    """One EC2 instance type."""

    name: str = Field(description="EC2's name.")
    vcpus: int = Field(gt=0, description="Default vCPUs.")
    memory_gib: float = Field(gt=0, description="Memory, GiB.")
    gpu: Gpu | None = Field(description="GPUs; none for CPU types.")
    nvswitch: bool = Field(description="Whether the GPUs need Fabric Manager.")
    instance_store_disks: int = Field(ge=0, description="NVMe instance store disks.")
    cluster_placement: bool = Field(description="Whether a cluster placement group takes it.")
    efa_interfaces: int = Field(ge=0, description="EFA interfaces that it bears.")
    network_cards: tuple[NetworkCard, ...] = Field(min_length=1, description="Network cards, by index.")

    def interfaces(self, efa: bool) -> list[InterfaceSpec]:
        """The interfaces of a launch template, laid out as AWS documents for EFA-accelerated types.

        The primary one (card 0, device 0) is a plain interface that holds the IP address. With EFA every card that
        bears it gets one `efa-only`: at device 1 beside the primary on card 0, at device 0 on the others.
        Source: EC2 user guide, "EFA-accelerated instance types".
        """
        layout = [InterfaceSpec(card=0, device=0, type="interface")]
        if efa:
            assert self.efa_interfaces, f"{self.name} bears no EFA"
            layout += [
                InterfaceSpec(card=card.index, device=1 if card.index == 0 else 0, type="efa-only")
                for card in self.network_cards
                if card.efa
            ]
        return layout


class Catalog(Contract):
    """All instance types that a stack may name."""

    dated: str = Field(description="Day of the data, YYYY-MM-DD.")
    source: str = Field(description="Where the data is from.")
    instance_types: tuple[InstanceType, ...] = Field(min_length=1, description="The types.")

    def get(self, name: str) -> InstanceType | None:
        return next((entry for entry in self.instance_types if entry.name == name), None)


@cache
def catalog() -> Catalog:
    """The catalog as shipped."""
    return Catalog.model_validate_json((Path(__file__).parent / "catalog.json").read_text())
