"""A model before anything is done to it for the ranks that it will run on."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import nn

Initialize = Callable[[str, nn.Module], None]


@dataclass(frozen=True, kw_only=True)
class Model:
    """A module, or one stage of it. Calling it with a micro-batch's tensors gives their mean loss."""

    module: nn.Module
    blocks: dict[str, nn.Module]  # by name: what is checkpointed, compiled and sharded one by one
    initialize: Initialize | None  # draws what one submodule itself holds; None: it is drawn
    vocabulary: int  # token ids, or classes, that it knows
    parameters: int  # trainable ones, of all stages
    flops: float | None  # of one sample's forward and backward pass, by trainer/telemetry/flops.py; None: not known


def repeated(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The blocks of a model of any make: the members of its outermost lists whose members are of one kind."""
    for own, child in module.named_children():
        path = f"{name}.{own}" if name else own
        members = list(child.children())
        alike = len({type(member) for member in members}) == 1
        if isinstance(child, nn.ModuleList | nn.Sequential) and alike and any(p.dim() > 1 for p in child.parameters()):
            yield from ((f"{path}.{number}", member) for number, member in enumerate(members))
        else:
            yield from repeated(child, path)
