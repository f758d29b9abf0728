"""A stack's settings, one module a part."""

from contract.settings.stack import MOST_NODES, StackSettings

__all__ = ["MOST_NODES", "StackSettings"]
