"""The built-in trainer's configuration, checked before money is spent and read again by the trainer."""

from trainyard.config.training.config import TrainerConfig

__all__ = ["TrainerConfig"]
