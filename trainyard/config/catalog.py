"""The hardware catalog: what the stacks' instance types are made of. The data stands in `catalog.json`, dated."""

from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field

from trainyard.base import Contract
from trainyard.config.gpus import Chip, chips

MATMUL_SHARE = 0.5  # of the peak that NVIDIA gives: large products reach 65 to 85 % on a healthy GPU
TORCH_CUDA = "13.2"  # what the torch of trainer/requirements.txt is built for


class Gpu(Contract):
    """The GPUs of an instance type."""

    model: str = Field(description="NVIDIA's model name, one of the catalog's chips.")
    count: int = Field(gt=0, description="GPUs per instance.")
    memory_mib: int = Field(gt=0, description="Memory of each, MiB.")
    interconnect: Literal["nvswitch", "nvlink", "pcie"] | None = Field(description="Between them; none for one GPU.")
    clocks: tuple[int, int] | None = Field(
        None, description="Application clocks that AWS advises, memory and graphics, MHz; none: the driver's own."
    )

    @property
    def chip(self) -> Chip:
        return next(chip for chip in chips() if chip.model == self.model)


class Cards(Contract):
    """Network cards that are equal, with consecutive indexes."""

    count: int = Field(gt=0, description="How many.")
    interfaces: int = Field(gt=0, description="Network interfaces that each bears.")
    efa: bool = Field(description="Whether each bears an EFA interface. Plain interfaces they all do.")


class NetworkCard(Contract):
    """One network card, as DescribeInstanceTypes lists it."""

    index: int = Field(ge=0, description="Network card index.")
    interfaces: int = Field(gt=0, description="Network interfaces that the card bears.")
    efa: bool = Field(description="Whether the card bears an EFA interface.")


class InterfaceSpec(Contract):
    """One network interface of a launch template."""

    card: int = Field(ge=0, description="NetworkCardIndex.")
    device: int = Field(ge=0, description="DeviceIndex on that card.")
    type: Literal["interface", "efa-only"] = Field(description="InterfaceType.")


class InstanceStore(Contract):
    """NVMe disks that live and die with the instance."""

    disks: int = Field(gt=0, description="How many.")
    gb: int = Field(gt=0, description="Size of each, GB.")


class InstanceType(Contract):
    """One EC2 instance type."""

    name: str = Field(description="EC2's name.")
    vcpus: int = Field(gt=0, description="Default vCPUs.")
    memory_gib: float = Field(gt=0, description="Memory, GiB.")
    on_demand_usd: float | None = Field(
        gt=0, description="List price, USD an hour, Linux, us-east-1; none where it is sold by Capacity Block only."
    )
    capacity_block_usd: float | None = Field(
        None, gt=0, description="Effective rate of a Capacity Block, USD an hour; none where it is not sold so."
    )
    cluster_placement: bool = Field(True, description="Whether a cluster placement group takes it.")
    gpu: Gpu | None = Field(None, description="GPUs; none for CPU types.")
    cards: tuple[Cards, ...] = Field(min_length=1, description="Network cards, by index, equal ones together.")
    instance_store: InstanceStore | None = Field(None, description="Local NVMe disks.")
    nvlink_gbs: float | None = Field(None, gt=0, description="Floor of an all-reduce within a node, GB/s.")
    network_gbs: float | None = Field(None, gt=0, description="Floor of an all-reduce over all nodes by EFA, GB/s.")

    @property
    def network_cards(self) -> tuple[NetworkCard, ...]:
        each = [group for group in self.cards for _ in range(group.count)]
        return tuple(
            NetworkCard(index=index, interfaces=group.interfaces, efa=group.efa) for index, group in enumerate(each)
        )

    @property
    def efa_interfaces(self) -> int:
        """EFA interfaces that it bears: one on each card that bears any."""
        return sum(group.count for group in self.cards if group.efa)

    @property
    def matmul_tflops(self) -> float | None:
        """Floor of a bf16 matrix product on one GPU; none without such tensor cores."""
        peak = self.gpu.chip.bf16_tflops if self.gpu else None
        return round(peak * MATMUL_SHARE, 1) if peak else None

    @property
    def nvswitch(self) -> bool:
        """Whether the GPUs need Fabric Manager."""
        return self.gpu is not None and self.gpu.interconnect == "nvswitch"

    @property
    def nvlink5(self) -> bool:
        """Whether the NVLink between its GPUs is Blackwell's, which Fabric Manager shares with a subnet manager."""
        return self.gpu is not None and self.nvswitch and float(self.gpu.chip.compute_capability) >= 10

    def undriven(self, cuda: str = TORCH_CUDA) -> str | None:
        """Why a torch built for this CUDA (major.minor) can't use the type's GPUs; None where it can, or has none."""
        if self.gpu is None or self.gpu.chip.last_cuda is None or _release(cuda) <= _release(self.gpu.chip.last_cuda):
            return None
        last = self.gpu.chip.last_cuda
        return f"its {self.gpu.model} GPUs are supported up to CUDA {last}, and torch is built for CUDA {cuda}"

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
    sources: tuple[str, ...] = Field(min_length=1, description="Where the data is from, one line a kind of fact.")
    instance_types: tuple[InstanceType, ...] = Field(min_length=1, description="The types.")

    def get(self, name: str) -> InstanceType | None:
        return next((entry for entry in self.instance_types if entry.name == name), None)


@cache
def catalog() -> Catalog:
    """The catalog as shipped."""
    return Catalog.model_validate_json((Path(__file__).parent / "catalog.json").read_text())


def _release(cuda: str) -> tuple[int, ...]:
    return tuple(int(part) for part in cuda.split("."))
