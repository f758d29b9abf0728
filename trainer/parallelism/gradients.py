"""Norm and scaling of all gradients of a model whose parameters are distributed over ranks."""

import logging
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainer.local_tensor import local_tensor
from trainyard.errors import InputError, Problem

# It proposes a process group for a sum of one number over two dimensions of the mesh.
logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)


def require_gradients(module: nn.Module) -> None:
    """Raise InputError if a trainable parameter has no gradient after a backward pass: it has no part in the loss.

    DistributedDataParallel would wait for its gradient, and a checkpoint would have no optimizer state of it.
    """
    names = [name for name, each in module.named_parameters() if each.requires_grad and each.grad is None]
    if names:
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} others" if len(names) > 3 else "")
        reason = f"the loss does not depend on the parameters {shown}"
        fix = "Use them in forward, remove them, set their requires_grad to False, or use another model"
        raise InputError([Problem("config.model", None, reason, fix, "parameters_without_gradient")])


def global_gradient_norm(parameters: Iterable[nn.Parameter], pipeline_group: dist.ProcessGroup | None) -> Tensor:
    """Return the 2-norm over all gradients, the same on all ranks.

    With `pipeline_group` the gradients of all pipeline stages are included. torch's clip_grad_norm_ fails where
    parameters are on different meshes; here the norm is computed per mesh and placement, and combined.
    """
    groups: dict[Any, list[Tensor]] = defaultdict(list)
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is not None:
            key = (gradient.device_mesh, gradient.placements) if isinstance(gradient, DTensor) else None
            groups[key].append(gradient)
    squares = []
    for gradients in groups.values():
        norm = nn.utils.get_total_norm(gradients)
        squares.append((norm.full_tensor() if isinstance(norm, DTensor) else norm).float() ** 2)
    total = torch.stack(squares).sum()
    if pipeline_group is not None:
        dist.all_reduce(total, group=pipeline_group)
    return total.sqrt()


def scale_gradients(parameters: Iterable[nn.Parameter], factor: Tensor) -> None:
    """Multiply all gradients by the scalar `factor`; each rank scales its local part."""
    local = [local_tensor(gradient) for parameter in parameters if (gradient := parameter.grad) is not None]
    torch._foreach_mul_(local, factor)
