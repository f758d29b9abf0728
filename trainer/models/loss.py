"""Cross-entropy of a linear layer's outputs, a few rows at a time: the logits of a batch never stand whole.

torch's own `F.linear_cross_entropy` does the same for one rank's whole vocabulary, and returns the loss of bf16 inputs
in bf16: three digits. Here the loss is fp32, and a vocabulary may be split over the ranks of a group.
"""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Replicate

from trainyard.config.training.models import IGNORED


def next_token_loss(
    x: Tensor, weight: Tensor, targets: Tensor, chunk: int | None, *, bias: Tensor | None = None
) -> Tensor:
    """Mean over all targets but IGNORED, nats.

    x: (batch, length, dim), weight: (vocabulary, dim), targets: (batch, length), bias: (vocabulary,).
    `chunk` rows of logits stand at once; None: all. A quantized weight is for evaluation: by plain operations.
    Under tensor parallelism the weight is a DTensor split by rows, and x a DTensor split along its length.
    """
    if chunk is None and not isinstance(weight, DTensor):
        return F.cross_entropy(F.linear(x, weight, bias).float().flatten(0, 1), targets.flatten())
    if type(weight) not in (Tensor, nn.Parameter, DTensor):
        return _by_parts(x.flatten(0, 1), weight, bias, targets.flatten(), chunk)
    group: dist.ProcessGroup | None = None
    if isinstance(weight, DTensor):
        group = weight.device_mesh.get_group()
        assert isinstance(x, DTensor)
        # Each rank knows its own rows' part of the gradient of x: their sum goes back.
        x = x.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
        weight = weight.to_local()
    if torch.is_autocast_enabled(x.device.type):
        x = x.to(torch.get_autocast_dtype(x.device.type))
    loss: Tensor = _ChunkedCrossEntropy.apply(x.flatten(0, 1), weight, bias, targets.flatten(), chunk, group)
    return loss


def _by_parts(x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, chunk: int | None) -> Tensor:
    total = torch.zeros((), device=x.device)
    for rows, own in zip(torch.split(x, chunk or len(x)), torch.split(targets, chunk or len(x)), strict=True):
        total += F.cross_entropy(F.linear(rows, weight, bias).float(), own, ignore_index=IGNORED, reduction="sum")
    return total / (targets != IGNORED).sum().clamp(min=1)


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Gradients are made beside the loss, while a chunk's logits are there: three matrix products, none done twice.

    They are those of the sum over the targets, whose factors are of the size of probabilities: what 16 bits can hold.
    The mean's, divided by thousands of targets, are too small for fp16, and the loss scale that would lift them comes
    with the backward pass, which therefore divides. Sums over chunks are fp32.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        chunk: int | None,
        group: dist.ProcessGroup | None,
    ) -> Tensor:
        rows = weight.size(0)
        first = rows * dist.get_rank(group) if group else 0
        matrix = weight.detach().to(x.dtype)
        count = (targets != IGNORED).sum().clamp(min=1)
        learns = any(ctx.needs_input_grad)
        loss = torch.zeros((), device=x.device, dtype=torch.float32)
        x_gradient = torch.empty_like(x) if learns else None
        weight_gradient = torch.zeros_like(matrix, dtype=torch.float32) if learns else None
        bias_gradient = torch.zeros_like(bias, dtype=torch.float32) if learns and bias is not None else None
        for start in range(0, x.size(0), chunk or x.size(0)):
            part = slice(start, start + (chunk or x.size(0)))
            logits = (x[part] @ matrix.t()).float()
            if bias is not None:
                logits += bias
            kept = targets[part] != IGNORED
            own = kept & (targets[part] >= first) & (targets[part] < first + rows)
            place = torch.where(own, targets[part] - first, 0).unsqueeze(1)
            of_target = logits.gather(1, place).squeeze(1) * own
            peak = logits.amax(1)
            if group:
                dist.all_reduce(peak, dist.ReduceOp.MAX, group)
            logits -= peak.unsqueeze(1)
            probabilities = logits.exp_()
            total = probabilities.sum(1)
            if group:
                dist.all_reduce(total, group=group)
                dist.all_reduce(of_target, group=group)
            loss += ((total.log() + peak - of_target) * kept).sum()
            if x_gradient is not None and weight_gradient is not None:
                probabilities *= (kept / total).unsqueeze(1)
                probabilities.scatter_add_(1, place, -own.float().unsqueeze(1))
                gradient = probabilities.to(x.dtype)
                torch.mm(gradient, matrix, out=x_gradient[part])
                weight_gradient += _product(gradient.t(), x[part])
                if bias_gradient is not None:
                    bias_gradient += probabilities.sum(0)
        ctx.save_for_backward(x_gradient, weight_gradient, bias_gradient, count)
        ctx.kinds = x.dtype, weight.dtype, bias.dtype if bias is not None else None
        return loss / count

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        *sums, count = ctx.saved_tensors
        (scale,) = gradients
        # In fp32, and only then rounded: the scale itself may be more than fp16 can hold.
        found = (
            None if each is None else (each.float() * (scale / count)).to(kind)
            for each, kind in zip(sums, ctx.kinds, strict=True)
        )
        return (*found, None, None, None)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """In fp32, of any type: rows by the thousand may add up to more than fp16 can hold."""
    if a.dtype == torch.float32:
        return a @ b
    if a.is_cuda:
        return torch.mm(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()  # on CPUs torch has no such product
