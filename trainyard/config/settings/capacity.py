"""Capacity of the workers: the purchase option, and the Availability Zones where the launch searches for capacity."""

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from trainyard.base import StrictModel
from trainyard.config.catalog import InstanceTypeName
from trainyard.config.field_types import Integer, Number, ReservationId, ZoneName
from trainyard.config.shared_settings import Market

OnExpiry = Literal["shorten", "refuse"]


class OnDemand(StrictModel):
    """On-Demand Instances."""


class Spot(StrictModel):
    """Spot Instances, which AWS interrupts with two minutes' notice."""

    instance_types: tuple[InstanceTypeName, ...] = Field(
        (),
        max_length=39,
        description="Additional instance types for the Spot Instances; their GPUs must equal those of "
        "instance_type. AWS selects by capacity and price.",
    )
    equal_gpus: bool = Field(
        False,
        description="Whether the Spot Instances may have any instance type of the catalog whose GPUs equal "
        "those of instance_type.",
    )
    max_price_usd: Number | None = Field(
        None, gt=0, description="Maximum price of an instance, USD an hour; null: the on-demand price of its type."
    )


class SpotAboveBase(Spot):
    """Base nodes, on-demand or in a reservation, and Spot nodes in addition."""

    base_nodes: Integer = Field(gt=0, description="Nodes of the base: on-demand, or of a reservation.")
    base_reservation: ReservationId | None = Field(
        None, description="Capacity reservation of the base nodes; null: on-demand."
    )


class Reservation(StrictModel):
    """An On-Demand Capacity Reservation, billed whether used or not."""

    id: ReservationId | None = Field(
        None,
        description="Id of the reservation; null: any open reservation that matches, and On-Demand Instances when "
        "these are full.",
    )
    interruptible: bool = Field(
        False,
        description="Whether the reservation is interruptible: its owner can reclaim instances with two minutes' "
        "notice.",
    )
    on_expiry: OnExpiry = Field(
        "shorten",
        description="If the reservation ends before the job's time limit: shorten the run, or refuse the stack.",
    )


class CapacityBlock(StrictModel):
    """A Capacity Block for ML: GPU instances bought in advance for some days."""

    id: ReservationId = Field(description="Id of the Capacity Block's reservation.")
    on_expiry: OnExpiry = Field(
        "shorten",
        description="If the Capacity Block ends before the job's time limit: shorten the run, or refuse the stack.",
    )


@dataclass(frozen=True, kw_only=True)
class GroupPlan:
    """A worker group derived from the settings.

    `reservation` is the id of its capacity reservation. `other_types`, `equal_gpus`: instance types of Spot
    Instances in addition to that of the stack.
    """

    name: str
    nodes: int
    market: Market
    reservation: str | None = None
    open_reservations: bool = False
    max_price_usd: float | None = None
    other_types: tuple[str, ...] = ()
    equal_gpus: bool = False


PURCHASE_OPTIONS = ("on_demand", "spot", "spot_above_base", "reservation", "capacity_block")


class CapacitySettings(StrictModel):
    """The purchase option, at most one of its keys, and the search for capacity."""

    on_demand: OnDemand | None = Field(None, description="On-Demand Instances; the default purchase option.")
    spot: Spot | None = Field(None, description="Spot Instances only.")
    spot_above_base: SpotAboveBase | None = Field(None, description="Base nodes, and Spot Instances in addition.")
    reservation: Reservation | None = Field(None, description="An On-Demand Capacity Reservation.")
    capacity_block: CapacityBlock | None = Field(None, description="A Capacity Block for ML.")
    zones: tuple[ZoneName, ...] | None = Field(
        None,
        description="Availability Zones in which the launch searches for capacity, in this order. The zones of the "
        "deployed head and of `trainyard reserve` are tried before them. The head is in the first zone that is tried. "
        "With FSx only this zone is used. null: the zone of the reservation or existing subnet, else all that offer "
        "the instance types.",
    )
    reserve: bool = Field(
        True,
        description="Whether the launch creates an On-Demand Capacity Reservation for all on-demand GPU nodes before "
        "it starts any of them. The reservation ends when the nodes are terminated. Only for on-demand GPU "
        "nodes without a reservation in capacity.",
    )
    wait_minutes: Number = Field(
        30,
        ge=0,
        le=7 * 24 * 60,
        description="Minutes for which the launch tries to create this reservation, in all zones; at most a week. "
        "The rest of the stack is billed meanwhile. Only with reserve.",
    )

    @property
    def sources(self) -> tuple[str, ...]:
        """The keys of purchase options that are set."""
        return tuple(name for name in PURCHASE_OPTIONS if getattr(self, name) is not None)

    @property
    def reservation_id(self) -> tuple[str, str] | None:
        """Key below `capacity` and id of the reservation in the settings; None without one."""
        if self.capacity_block:
            return "capacity_block.id", self.capacity_block.id
        if self.reservation and self.reservation.id:
            return "reservation.id", self.reservation.id
        if self.spot_above_base and self.spot_above_base.base_reservation:
            return "spot_above_base.base_reservation", self.spot_above_base.base_reservation
        return None

    @property
    def spot_settings(self) -> tuple[str, Spot] | None:
        """Key below `capacity` and settings of Spot Instances; None without any."""
        if self.spot_above_base:
            return "spot_above_base", self.spot_above_base
        return ("spot", self.spot) if self.spot else None

    @property
    def interruptible(self) -> bool:
        """Whether the workers are in an interruptible Capacity Reservation."""
        return self.reservation is not None and self.reservation.interruptible

    @property
    def on_expiry(self) -> OnExpiry:
        """Behaviour if the reserved capacity ends before the job's time limit."""
        reserved = self.capacity_block or self.reservation
        return reserved.on_expiry if reserved else "shorten"

    def groups(self, nodes: int) -> tuple[GroupPlan, ...]:
        """The worker groups of a cluster with `nodes` nodes. `spot_nodes_above_base` validates the split."""
        if self.spot:
            return (_spot_group("workers", nodes, self.spot),)
        if self.capacity_block:
            block = self.capacity_block.id
            return (GroupPlan(name="workers", nodes=nodes, market="capacity-block", reservation=block),)
        if self.spot_above_base:
            above = self.spot_above_base
            reservation, spot_nodes = above.base_reservation, max(nodes - above.base_nodes, 0)
            return (
                GroupPlan(name="workers", nodes=above.base_nodes, market="on-demand", reservation=reservation),
                _spot_group("spot", spot_nodes, above),
            )
        if self.reservation:
            reservation = self.reservation.id
            market: Market = "interruptible-capacity-reservation" if self.interruptible else "on-demand"
            is_open = reservation is None
            return (
                GroupPlan(
                    name="workers", nodes=nodes, market=market, reservation=reservation, open_reservations=is_open
                ),
            )
        return (GroupPlan(name="workers", nodes=nodes, market="on-demand"),)


def _spot_group(name: str, nodes: int, spot: Spot) -> GroupPlan:
    return GroupPlan(
        name=name,
        nodes=nodes,
        market="spot",
        max_price_usd=spot.max_price_usd,
        other_types=spot.instance_types,
        equal_gpus=spot.equal_gpus,
    )
