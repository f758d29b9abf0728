"""Checkpoints of a training run: asynchronous save, retention, and resume on any number of ranks."""

from trainer.checkpoints.manager import Checkpoints
from trainer.checkpoints.state import Progress, State

__all__ = ["Checkpoints", "Progress", "State"]
