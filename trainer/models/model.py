"""A model before it is parallelized."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from trainyard.errors import InputError, Problem

Initialize = Callable[[str, nn.Module], None]


@dataclass(frozen=True, kw_only=True)
class Model:
    """A module, or one pipeline stage of it. Calling it with the tensors of a micro-batch returns their loss: the
    sum over the targets that are not IGNORED, divided by the number of all targets."""

    module: nn.Module
    blocks: dict[str, nn.Module]  # by name: units of activation checkpointing, compilation and sharding
    initialize: Initialize | None  # initializes the parameters of one submodule; None: they are initialized
    vocabulary: int  # number of token ids, or of classes
    parameters: int  # of all stages, without the matrices of LoRA
    pretrained: str | None = None  # location of the weights to load into the parallelized module; None: it has them
    # Tests whether it masks attention between the documents of a sequence, before it is parallelized; None: it does.
    separates_documents: Callable[[], bool] | None = None
    flops: float | None  # of one sample's forward and backward pass, see trainer/telemetry/flops.py; None: unknown


def setting_error(key: str, value: Any, reason: str, fix: str, code: str) -> InputError:
    """Create the error for a setting of the model."""
    return InputError([Problem(f"config.model.{key}", value, reason, fix, code)])


def find_blocks(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield the blocks of any model by name: the members of its outermost lists with members of a single type."""
    for child_name, child in module.named_children():
        path = f"{name}.{child_name}" if name else child_name
        members = list(child.children())
        same_type = len({type(member) for member in members}) == 1
        has_matrix = any(parameter.dim() > 1 for parameter in child.parameters())
        if isinstance(child, nn.ModuleList | nn.Sequential) and same_type and has_matrix:
            yield from ((f"{path}.{number}", member) for number, member in enumerate(members))
        else:
            yield from find_blocks(child, path)
