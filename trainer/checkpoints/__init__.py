"""Checkpoints of a run: saved beside training, kept by a rule, found and loaded again on any number of ranks."""

from trainer.checkpoints.run import Checkpoints
from trainer.checkpoints.state import Progress, State

__all__ = ["Checkpoints", "Progress", "State"]
