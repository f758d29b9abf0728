"""The settings of a stack, one module for each part."""

from trainyard.config.settings.stack import MAX_NODES, StackSettings

__all__ = ["MAX_NODES", "StackSettings"]
