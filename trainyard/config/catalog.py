"""The hardware catalog: facts of the EC2 instance types that a stack may use. Data: `catalog.json`."""

from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from trainyard.base import StrictModel
from trainyard.config.field_types import validation_error
from trainyard.config.gpus import GpuModel, gpu_models

MATMUL_FLOOR = 0.5  # share of NVIDIA's peak; large matrix products reach 65 to 85 % on a healthy GPU
TORCH_CUDA = "13.2"  # CUDA version of the torch build in trainer/requirements.in


class Gpu(StrictModel):
    """The GPUs of an instance type."""

    model: str = Field(description="NVIDIA's model name, listed in gpus.json.")
    count: int = Field(gt=0, description="GPUs per instance.")
    memory_mib: int = Field(gt=0, description="Memory of each GPU, MiB.")
    interconnect: Literal["nvswitch", "nvlink", "pcie"] | None = Field(
        description="Interconnect of the GPUs; null for one GPU."
    )
    clocks: tuple[int, int] | None = Field(
        None,
        description="Application clocks that AWS recommends, memory and graphics, MHz; null: the driver's default.",
    )

    @property
    def specs(self) -> GpuModel:
        """Specifications of the GPU model."""
        return next(entry for entry in gpu_models() if entry.model == self.model)


class NetworkCards(StrictModel):
    """Identical network cards with consecutive indexes."""

    count: int = Field(gt=0, description="Number of cards.")
    interfaces: int = Field(gt=0, description="Maximum network interfaces of each card.")
    efa: bool = Field(description="Whether each card supports an EFA interface.")


class NetworkCard(StrictModel):
    """One network card, as DescribeInstanceTypes lists it."""

    index: int = Field(ge=0, description="Network card index.")
    interfaces: int = Field(gt=0, description="Maximum network interfaces of the card.")
    efa: bool = Field(description="Whether the card supports an EFA interface.")


class InterfaceSpec(StrictModel):
    """One network interface of a launch template."""

    card: int = Field(ge=0, description="NetworkCardIndex.")
    device: int = Field(ge=0, description="DeviceIndex on that card.")
    type: Literal["interface", "efa-only"] = Field(description="InterfaceType.")


class InstanceStore(StrictModel):
    """NVMe instance store volumes."""

    disks: int = Field(gt=0, description="Number of volumes.")
    gb: int = Field(gt=0, description="Size of each volume, GB.")


class InstanceType(StrictModel):
    """One EC2 instance type."""

    name: str = Field(description="Instance type name.")
    vcpus: int = Field(gt=0, description="Default vCPUs.")
    memory_gib: float = Field(gt=0, description="Memory, GiB.")
    on_demand_usd: float | None = Field(
        gt=0, description="On-demand list price, USD an hour, Linux, us-east-1; null: sold in Capacity Blocks only."
    )
    capacity_block_usd: float | None = Field(
        None, gt=0, description="Effective rate of a Capacity Block, USD an hour; null: not sold in Capacity Blocks."
    )
    cluster_placement: bool = Field(True, description="Whether it supports cluster placement groups.")
    gpu: Gpu | None = Field(None, description="GPUs; null for CPU types.")
    cards: tuple[NetworkCards, ...] = Field(min_length=1, description="Network cards, by index, grouped.")
    instance_store: InstanceStore | None = Field(None, description="NVMe instance store.")
    min_nvlink_gbs: float | None = Field(
        None, gt=0, description="Minimum all-reduce bus bandwidth within a node, GB/s."
    )
    min_network_gbs: float | None = Field(
        None, gt=0, description="Minimum all-reduce bus bandwidth over EFA between nodes, GB/s."
    )

    @property
    def network_cards(self) -> tuple[NetworkCard, ...]:
        """Every network card, in the order of DescribeInstanceTypes."""
        cards = [group for group in self.cards for _ in range(group.count)]
        return tuple(
            NetworkCard(index=index, interfaces=card.interfaces, efa=card.efa) for index, card in enumerate(cards)
        )

    @property
    def efa_interfaces(self) -> int:
        """Maximum EFA interfaces: one on each card that supports EFA."""
        return sum(group.count for group in self.cards if group.efa)

    @property
    def min_matmul_tflops(self) -> float | None:
        """Minimum TFLOP/s of a bf16 matrix product on one GPU; None without bf16 tensor cores."""
        peak = self.gpu.specs.bf16_tflops if self.gpu else None
        return round(peak * MATMUL_FLOOR, 1) if peak else None

    @property
    def nvswitch(self) -> bool:
        """Whether the GPUs need Fabric Manager."""
        return self.gpu is not None and self.gpu.interconnect == "nvswitch"

    @property
    def nvlink5(self) -> bool:
        """Whether its NVLink is of the fifth generation (Blackwell), which needs a subnet manager."""
        return self.gpu is not None and self.nvswitch and float(self.gpu.specs.compute_capability) >= 10

    def has_gpus_of(self, other: "InstanceType") -> bool:
        """Whether its GPUs are those of the other type: model, number, memory and interconnect."""
        first, second = (
            each.gpu and (each.gpu.model, each.gpu.count, each.gpu.memory_mib, each.gpu.interconnect)
            for each in (self, other)
        )
        return first == second

    def supports_interfaces_of(self, other: "InstanceType", efa: bool) -> bool:
        """Whether it can be launched with the network interfaces of the other type."""
        return not efa or (self.efa_interfaces > 0 and set(other.interfaces(True)) <= set(self.interfaces(True)))

    def unsupported_by_cuda(self, cuda: str = TORCH_CUDA) -> str | None:
        """Return why torch built for this CUDA version (major.minor) does not support the GPUs; None if it does."""
        last = self.gpu.specs.last_cuda if self.gpu else None
        if self.gpu is None or last is None or _version(cuda) <= _version(last):
            return None
        return f"CUDA supports its {self.gpu.model} GPUs up to {last}, and torch is built for CUDA {cuda}"

    def interfaces(self, efa: bool) -> list[InterfaceSpec]:
        """Network interfaces of a launch template, in the layout that AWS documents for EFA-accelerated types.

        The primary interface (card 0, device 0) is a plain interface with the IP address. With EFA, every card that
        supports it has one `efa-only` interface: at device 1 on card 0, at device 0 on the other cards.
        Source: EC2 user guide, "EFA-accelerated instance types".
        """
        layout = [InterfaceSpec(card=0, device=0, type="interface")]
        if efa:
            assert self.efa_interfaces, f"{self.name} does not support EFA"
            layout += [
                InterfaceSpec(card=card.index, device=1 if card.index == 0 else 0, type="efa-only")
                for card in self.network_cards
                if card.efa
            ]
        return layout


class Catalog(StrictModel):
    """All instance types that a stack may use."""

    dated: str = Field(description="Day of the data, YYYY-MM-DD.")
    sources: tuple[str, ...] = Field(min_length=1, description="Sources of the data, one line for each kind of fact.")
    instance_types: tuple[InstanceType, ...] = Field(min_length=1, description="The instance types.")

    def get(self, name: str) -> InstanceType | None:
        """Return the entry of an instance type, or None."""
        return next((entry for entry in self.instance_types if entry.name == name), None)


@cache
def catalog() -> Catalog:
    """Return the catalog of `catalog.json`."""
    return Catalog.model_validate_json((Path(__file__).parent / "catalog.json").read_text())


def _known_instance_type(value: str) -> str:
    if catalog().get(value) is None:
        known = [entry.name for entry in catalog().instance_types]
        similar = ", ".join(get_close_matches(value, known, n=4, cutoff=0.4) or known[:4])
        reason = f"not in trainyard/config/catalog.json; similar types are {similar}"
        raise validation_error("unknown_instance_type", reason)
    return value


InstanceTypeName = Annotated[str, AfterValidator(_known_instance_type)]


def _version(cuda: str) -> tuple[int, ...]:
    return tuple(int(part) for part in cuda.split("."))
