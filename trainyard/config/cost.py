"""What a cluster costs, itemised: each part's hourly price, and the total until a deadline."""

from collections.abc import Iterable

from pydantic import Field

from trainyard.base import Contract


class Item(Contract):
    """One line of a bill."""

    what: str = Field(description="What is paid for.")
    count: float = Field(ge=0, description="How many, or how much, of it.")
    usd_per_hour: float = Field(ge=0, description="USD an hour of one.")

    @property
    def hourly(self) -> float:
        """USD an hour of all of them."""
        return self.count * self.usd_per_hour


def hourly(items: Iterable[Item]) -> float:
    """USD an hour of all together."""
    return sum(item.hourly for item in items)


def capped(items: Iterable[Item], minutes: float) -> float:
    """USD of all together when they end after so many minutes."""
    assert minutes >= 0, f"{minutes} minutes"
    return hourly(items) * minutes / 60
