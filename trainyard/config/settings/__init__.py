"""A stack's settings, one module a part."""

from trainyard.config.settings.stack import MOST_NODES, StackSettings

__all__ = ["MOST_NODES", "StackSettings"]
