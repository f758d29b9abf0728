"""Where the time of a run went."""

from collections import Counter
from typing import Literal

Use = Literal[
    "training",
    "repeated steps",
    "checkpoints",
    "detection",
    "repair",
    "replacement",
    "health check",
    "restart",
    "reload",
    "startup",
]
"""What a second of the run was used for: training that is not repeated, or a cause of loss. `startup`: until the nodes
of the launch are ready; later health checks, restarts and reloads count as such."""


class Ledger:
    """Seconds of a run by their use."""

    def __init__(self) -> None:
        self.seconds: Counter[Use] = Counter()

    def add(self, use: Use, seconds: float) -> None:
        """Add time that has passed."""
        self.seconds[use] += seconds  # type: ignore[assignment]

    def move(self, source: Use, target: Use, seconds: float) -> None:
        """Count time that has passed for another use."""
        self.add(source, -seconds)
        self.add(target, seconds)

    @property
    def total(self) -> float:
        """All time."""
        return sum(self.seconds.values())

    def share(self, use: Use) -> float:
        """Return the share of a use."""
        return self.seconds[use] / self.total if self.total else 0.0
