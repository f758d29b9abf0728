"""What a sensor is, and what it reports."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from trainyard.node.health.rules import Rule

READ_SECONDS = 5.0  # time between two readings of a sensor


@dataclass(frozen=True)
class Reading:
    """One sign of a fault. `time`: Unix time of an event; None: a condition that holds now."""

    rule: Rule
    device: str | None
    text: str
    time: float | None = None


class SensorUnavailableError(Exception):
    """The node does not have what the sensor reads, so there is no use in reading it again."""


class Sensor(Protocol):
    """Reads one source, in its own thread. It may fail or hang: the monitor reads the others meanwhile."""

    @property
    def name(self) -> str:
        """Name of the source."""

    @property
    def interval_seconds(self) -> float:
        """Time between two readings."""

    def read(self) -> Iterable[Reading]:
        """Return the events since the last call and the conditions that hold. Raises SensorUnavailableError."""

    def close(self) -> None:
        """Release the source. The next `read` opens it again."""
