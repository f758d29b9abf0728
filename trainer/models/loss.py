"""Cross-entropy of a linear layer's outputs in chunks of rows, so that the logits of a batch are never all in memory.

torch's `F.linear_cross_entropy` does the same for the whole vocabulary on one rank, and returns the loss of bf16 inputs
in bf16: three digits. Here the loss is fp32, and the vocabulary may be sharded over the ranks of a group.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.nn import functional

from trainyard.config.training.models import IGNORED


def next_token_loss(
    x: Tensor, weight: Tensor, targets: Tensor, chunk: int | None, *, bias: Tensor | None = None
) -> Tensor:
    """Return the mean cross-entropy over all targets except IGNORED, nats.

    x: (batch, length, dim), weight: (vocabulary, dim), targets: (batch, length), bias: (vocabulary,).
    `chunk`: number of rows of logits in memory; None: all. A quantized weight supports evaluation only.
    With tensor parallelism the weight is a DTensor sharded by rows, and x a DTensor sharded along its length.
    """
    if chunk is None and not isinstance(weight, DTensor):
        return functional.cross_entropy(functional.linear(x, weight, bias).float().flatten(0, 1), targets.flatten())
    if type(weight) not in (Tensor, nn.Parameter, DTensor):
        return _evaluate_in_chunks(x.flatten(0, 1), weight, bias, targets.flatten(), chunk)
    group: dist.ProcessGroup | None = None
    if isinstance(weight, DTensor):
        group = weight.device_mesh.get_group()
        assert isinstance(x, DTensor)
        # Each rank computes the gradient of x for its rows of the weight; the backward pass sums them.
        x = x.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
        weight = weight.to_local()
    if torch.is_autocast_enabled(x.device.type):
        x = x.to(torch.get_autocast_dtype(x.device.type))
    loss: Tensor = _ChunkedCrossEntropy.apply(x.flatten(0, 1), weight, bias, targets.flatten(), chunk, group)
    return loss


def _evaluate_in_chunks(x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, chunk: int | None) -> Tensor:
    total = torch.zeros((), device=x.device)
    size = chunk or len(x)
    for rows, labels in zip(torch.split(x, size), torch.split(targets, size), strict=True):
        total += functional.cross_entropy(
            functional.linear(rows, weight, bias).float(), labels, ignore_index=IGNORED, reduction="sum"
        )
    return total / (targets != IGNORED).sum().clamp(min=1)


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Computes gradients in the forward pass, while a chunk's logits are in memory: three matrix products, none twice.

    The gradients are those of the sum over targets, whose factors have the magnitude of probabilities, which 16 bits
    can represent. Those of the mean, divided by thousands of targets, are too small for fp16, and the loss scale that
    corrects this is known in the backward pass only, which therefore divides. Sums over chunks are fp32.
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
        needs_gradient = any(ctx.needs_input_grad)
        loss = torch.zeros((), device=x.device, dtype=torch.float32)
        x_gradient = torch.empty_like(x) if needs_gradient else None
        weight_gradient = torch.zeros_like(matrix, dtype=torch.float32) if needs_gradient else None
        bias_gradient = torch.zeros_like(bias, dtype=torch.float32) if needs_gradient and bias is not None else None
        for start in range(0, x.size(0), chunk or x.size(0)):
            part = slice(start, start + (chunk or x.size(0)))
            logits = (x[part] @ matrix.t()).float()
            if bias is not None:
                logits += bias
            counted = targets[part] != IGNORED
            local = counted & (targets[part] >= first) & (targets[part] < first + rows)
            index = torch.where(local, targets[part] - first, 0).unsqueeze(1)
            target_logit = logits.gather(1, index).squeeze(1) * local
            maximum = logits.amax(1)
            if group:
                dist.all_reduce(maximum, dist.ReduceOp.MAX, group)
            logits -= maximum.unsqueeze(1)
            probabilities = logits.exp_()
            total = probabilities.sum(1)
            if group:
                dist.all_reduce(total, group=group)
                dist.all_reduce(target_logit, group=group)
            loss += ((total.log() + maximum - target_logit) * counted).sum()
            if x_gradient is not None and weight_gradient is not None:
                probabilities *= (counted / total).unsqueeze(1)
                probabilities.scatter_add_(1, index, -local.float().unsqueeze(1))
                gradient = probabilities.to(x.dtype)
                torch.mm(gradient, matrix, out=x_gradient[part])
                weight_gradient += _fp32_product(gradient.t(), x[part])
                if bias_gradient is not None:
                    bias_gradient += probabilities.sum(0)
        ctx.save_for_backward(x_gradient, weight_gradient, bias_gradient, count)
        ctx.dtypes = x.dtype, weight.dtype, bias.dtype if bias is not None else None
        return loss / count

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        *sums, count = ctx.saved_tensors
        (scale,) = gradients
        # Multiplied in fp32 and then rounded: the scale may be larger than fp16's maximum.
        scaled = (
            None if total is None else (total.float() * (scale / count)).to(dtype)
            for total, dtype in zip(sums, ctx.dtypes, strict=True)
        )
        return (*scaled, None, None, None)


def _fp32_product(a: Tensor, b: Tensor) -> Tensor:
    """Return the matrix product in fp32: sums over thousands of rows may exceed fp16's maximum."""
    if a.dtype == torch.float32:
        return a @ b
    if a.is_cuda:
        return torch.mm(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()  # torch has no product with out_dtype on CPUs
