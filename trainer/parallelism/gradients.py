"""The norm of all gradients of a model, however its parameters are spread over the ranks."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


def global_norm(parameters: Iterable[nn.Parameter], stages: dist.ProcessGroup | None) -> Tensor:
    """The 2-norm over all of them and, with `stages`, over those of every stage of a pipeline; the same on all ranks.

    torch's own clip_grad_norm_ fails where parameters lie on different meshes. Here each kind has a norm of its own.
    """
    kinds: dict[Any, list[Tensor]] = defaultdict(list)
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is not None:
            kinds[(gradient.device_mesh, gradient.placements) if isinstance(gradient, DTensor) else None].append(
                gradient
            )
    squares = []
    for gradients in kinds.values():
        norm = nn.utils.get_total_norm(gradients)
        squares.append((norm.full_tensor() if isinstance(norm, DTensor) else norm).float() ** 2)
    total = torch.stack(squares).sum()
    if stages is not None:
        dist.all_reduce(total, group=stages)
    return total.sqrt()


def scale(parameters: Iterable[nn.Parameter], factor: float) -> None:
    """Multiply all gradients by a number, each rank its own pieces."""
    if factor == 1:
        return
    own = [
        gradient.to_local() if isinstance(gradient, DTensor) else gradient
        for parameter in parameters
        if (gradient := parameter.grad) is not None
    ]
    torch._foreach_mul_(own, factor)
