"""Where a cluster's instances come from: one key of `capacity`, with its own keys below it."""

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from trainyard.base import Contract
from trainyard.config.numbers import Number, Whole
from trainyard.config.settings.names import ReservationId
from trainyard.models.manifest import Market

AtItsEnd = Literal["shorten", "refuse"]


class OnDemand(Contract):
    """Instances at the list price, as long as EC2 has them."""


class Spot(Contract):
    """Spare capacity, which AWS takes back with two minutes' notice."""

    max_price_usd: Number | None = Field(
        None, gt=0, description="Highest price of an instance, USD an hour; none: the on-demand price."
    )


class SpotAboveBase(Contract):
    """Some nodes that stay, and spot nodes above them."""

    base_nodes: Whole = Field(gt=0, description="Nodes of the base: on-demand, or of a reservation.")
    base_reservation: ReservationId | None = Field(
        None, description="Capacity reservation that the base is launched into; none: on-demand."
    )
    max_price_usd: Number | None = Field(
        None, gt=0, description="Highest price of a spot instance, USD an hour; none: the on-demand price."
    )


class Reservation(Contract):
    """An on-demand capacity reservation, which is paid for whether it is used or not."""

    id: ReservationId | None = Field(
        None,
        description="The reservation to launch into, and nowhere else; none: open reservations that match, and "
        "on-demand where they have no room.",
    )
    at_its_end: AtItsEnd = Field(
        "shorten",
        description="What a reservation that ends before the job's time limit does: shorten the limit, or refuse.",
    )


class CapacityBlock(Contract):
    """A Capacity Block for ML: GPUs bought in advance for some days."""

    id: ReservationId = Field(description="The block's capacity reservation.")
    at_its_end: AtItsEnd = Field(
        "shorten", description="What a block that ends before the job's time limit does: shorten the limit, or refuse."
    )


@dataclass(frozen=True, kw_only=True)
class GroupPlan:
    """One worker group that follows from the settings. `reservation`: id of the one it is launched into."""

    name: str
    nodes: int
    market: Market
    reservation: str | None = None
    open_reservations: bool = False
    max_price_usd: float | None = None


class CapacitySettings(Contract):
    """Exactly one key."""

    on_demand: OnDemand | None = Field(None, description="On-demand instances; what is taken when no key is given.")
    spot: Spot | None = Field(None, description="Spot instances only.")
    spot_above_base: SpotAboveBase | None = Field(None, description="A base that stays, spot instances above it.")
    reservation: Reservation | None = Field(None, description="An on-demand capacity reservation.")
    capacity_block: CapacityBlock | None = Field(None, description="A Capacity Block for ML.")

    @property
    def given(self) -> tuple[str, ...]:
        """The keys that stand there."""
        return tuple(name for name in type(self).model_fields if getattr(self, name) is not None)

    @property
    def reservation_id(self) -> tuple[str, str] | None:
        """Path of the key below `capacity` and the reservation that it names; none where none is named."""
        if self.capacity_block:
            return "capacity_block.id", self.capacity_block.id
        if self.reservation and self.reservation.id:
            return "reservation.id", self.reservation.id
        if self.spot_above_base and self.spot_above_base.base_reservation:
            return "spot_above_base.base_reservation", self.spot_above_base.base_reservation
        return None

    @property
    def at_its_end(self) -> AtItsEnd:
        named = self.capacity_block or self.reservation
        return named.at_its_end if named else "shorten"

    def groups(self, nodes: int) -> tuple[GroupPlan, ...]:
        """The worker groups of a cluster of so many nodes. That a base leaves some for spot is a rule's to say."""
        if self.spot:
            return (GroupPlan(name="workers", nodes=nodes, market="spot", max_price_usd=self.spot.max_price_usd),)
        if self.capacity_block:
            block = self.capacity_block.id
            return (GroupPlan(name="workers", nodes=nodes, market="capacity-block", reservation=block),)
        if self.spot_above_base:
            above = self.spot_above_base
            base = GroupPlan(
                name="workers", nodes=above.base_nodes, market="on-demand", reservation=above.base_reservation
            )
            spot = GroupPlan(
                name="spot", nodes=max(nodes - above.base_nodes, 0), market="spot", max_price_usd=above.max_price_usd
            )
            return (base, spot)
        if self.reservation:
            named = self.reservation.id
            return (
                GroupPlan(
                    name="workers", nodes=nodes, market="on-demand", reservation=named, open_reservations=named is None
                ),
            )
        return (GroupPlan(name="workers", nodes=nodes, market="on-demand"),)
