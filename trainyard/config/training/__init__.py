"""The configuration of the built-in trainer, validated before the launch and read by the trainer."""

from trainyard.config.training.config import TrainerConfig

__all__ = ["TrainerConfig"]
