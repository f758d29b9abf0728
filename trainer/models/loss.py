"""Cross-entropy of a linear layer's outputs in chunks of rows, so that the logits of a batch are never all in memory.

torch's `F.linear_cross_entropy` does the same for the whole vocabulary on one rank, and returns the loss of bf16 inputs
in bf16: three digits. Here the loss is fp32, and the vocabulary may be sharded over the ranks of a group.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.nn import functional
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from trainyard.config.training.models import IGNORED


def next_token_loss(
    x: Tensor,
    weight: Tensor,
    targets: Tensor,
    chunk: int | None,
    *,
    bias: Tensor | None = None,
    compiled: bool | None = None,
) -> Tensor:
    """Return sum(cross-entropy of targets that are not IGNORED) / number of all targets, in nats.

    Micro-batches have different numbers of ignored targets. The mean loss per target is mean(result) /
    mean(target_share) over the micro-batches.

    x: (batch, length, dim), weight: (vocabulary, dim), targets: (batch, length), bias: (vocabulary,).
    `chunk`: number of rows of logits in memory; None: all. `compiled`: whether torch.compile fuses the passes over
    them; None: on GPUs. A quantized weight supports evaluation only.
    With tensor parallelism the weight is a DTensor sharded by rows, and x a DTensor sharded along its length.
    """
    if chunk is None and not isinstance(weight, DTensor):
        return cross_entropy(functional.linear(x, weight, bias), targets)
    if is_traceable_wrapper_subclass(weight) and not isinstance(weight, DTensor):
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
    options = _Options(chunk, group, x.is_cuda if compiled is None else compiled, torch.is_grad_enabled())
    loss: Tensor = _ChunkedCrossEntropy.apply(x.flatten(0, 1), weight, bias, targets.flatten(), options)
    return loss


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the result of `next_token_loss` from logits (batch, length, vocabulary)."""
    total = functional.cross_entropy(
        logits.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum"
    )
    return total / targets.numel()


def target_share(targets: Tensor) -> Tensor:
    """Return the share of targets that have a loss: all except IGNORED."""
    return (targets != IGNORED).float().mean()


@dataclass(frozen=True)
class _Options:
    chunk: int | None
    group: dist.ProcessGroup | None
    compiled: bool
    computes_gradients: bool  # the functions of autograd always run without gradients


def _evaluate_in_chunks(x: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, chunk: int | None) -> Tensor:
    total = torch.zeros((), device=x.device)
    size = chunk or len(x)
    for rows, labels in zip(torch.split(x, size), torch.split(targets, size), strict=True):
        total += functional.cross_entropy(
            functional.linear(rows, weight, bias).float(), labels, ignore_index=IGNORED, reduction="sum"
        )
    return total / targets.numel()


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
        options: _Options,
    ) -> Tensor:
        rows, group = weight.size(0), options.group
        first = rows * dist.get_rank(group) if group else 0
        matrix = weight.detach().to(x.dtype)
        needs_gradient = options.computes_gradients and any(ctx.needs_input_grad)
        loss = torch.zeros((), device=x.device, dtype=torch.float32)
        needs_x, needs_weight, needs_bias = (needs_gradient and needed for needed in ctx.needs_input_grad[:3])
        x_gradient = torch.empty_like(x) if needs_x else None
        weight_gradient: Tensor | None = None
        bias_gradient = torch.zeros_like(bias, dtype=torch.float32) if needs_bias and bias is not None else None
        statistics, probabilities = (_compiled if options.compiled else _eager)()
        size = options.chunk or x.size(0)
        for start in range(0, x.size(0), size):
            part = slice(start, start + size)
            logits = functional.linear(x[part], matrix, None if bias is None else bias.to(x.dtype))
            index, is_local = _local_index(targets[part], first, rows)
            counted = targets[part] != IGNORED
            # Of this rank's columns; the logits of the targets are 0 on the other ranks.
            log_sum, target_logit = statistics(logits, index, is_local)
            if group:
                log_sum, target_logit = _combine(log_sum, target_logit, group)
            loss += ((log_sum - target_logit) * counted).sum()
            if needs_gradient:
                gradient = probabilities(logits, log_sum, target_logit, index, is_local, counted)
                if x_gradient is not None:
                    torch.mm(gradient, matrix, out=x_gradient[part])
                if needs_weight:  # with LoRA the weight is frozen
                    weight_gradient = _add_product(weight_gradient, gradient.t(), x[part])
                if bias_gradient is not None:
                    bias_gradient += gradient.sum(0, dtype=torch.float32)
        ctx.save_for_backward(x_gradient, weight_gradient, bias_gradient)
        ctx.count = targets.numel()
        ctx.dtypes = x.dtype, weight.dtype, bias.dtype if bias is not None else None
        return loss / targets.numel()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        x_sum, *sums = ctx.saved_tensors
        scale = gradients[0] / ctx.count
        # Multiplied in fp32 and then rounded: the scale may be larger than fp16's maximum. In place for the sums over
        # chunks, which are as large as the weight.
        scaled = [None if x_sum is None else x_sum.float() * scale]
        scaled += [None if total is None else total.mul_(scale) for total in sums]
        typed = (None if total is None else total.to(dtype) for total, dtype in zip(scaled, ctx.dtypes, strict=True))
        return (*typed, None, None)


def _local_index(targets: Tensor, first: int, rows: int) -> tuple[Tensor, Tensor]:
    """Return the columns of the targets on this rank, 0 for those of other ranks, and whether they are on this rank.

    targets, results: (rows of a chunk). Ignored targets are on no rank.
    """
    is_local = (targets >= first) & (targets < first + rows) & (targets != IGNORED)
    return torch.where(is_local, targets - first, 0).unsqueeze(1), is_local


def _statistics(logits: Tensor, index: Tensor, is_local: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logarithm of the sum of exponentials of each row, and the logit of its target, in fp32."""
    log_sum = logits.float().logsumexp(1)
    return log_sum, logits.gather(1, index).squeeze(1).float() * is_local


def _probability_gradient(
    logits: Tensor, log_sum: Tensor, target_logit: Tensor, index: Tensor, is_local: Tensor, counted: Tensor
) -> Tensor:
    """Return the gradient of the sum of the losses with respect to the logits, with their type."""
    probabilities = (logits.float() - log_sum.unsqueeze(1)).exp_()
    gradient = probabilities.mul_(counted.unsqueeze(1)).to(logits.dtype)
    return _set_target_gradient(gradient, log_sum, target_logit, index, is_local, counted)


def _set_target_gradient(
    gradient: Tensor, log_sum: Tensor, target_logit: Tensor, index: Tensor, is_local: Tensor, counted: Tensor
) -> Tensor:
    """Replace the probability of each target in `gradient` by itself minus 1.

    It is computed in fp32: the difference of rounded numbers would be wrong.
    """
    of_target = (((target_logit - log_sum).exp() - 1) * counted).to(gradient.dtype).unsqueeze(1)
    return gradient.scatter_(1, index, torch.where(is_local.unsqueeze(1), of_target, gradient.gather(1, index)))


MIXED_PRODUCT_DEVICES = {"cuda"}  # types of devices whose matrix product can have another type than its arguments
_Functions = tuple[Callable[..., tuple[Tensor, Tensor]], Callable[..., Tensor]]


def _eager() -> _Functions:
    """Return `_statistics` and `_probability_gradient` for eager mode, in place: fewer passes over the logits."""
    exponentials: list[tuple[Tensor, Tensor]] = []  # those of a chunk, and the maxima of its rows

    def statistics(logits: Tensor, index: Tensor, is_local: Tensor) -> tuple[Tensor, Tensor]:
        values = logits.float()
        target_logit = values.gather(1, index).squeeze(1) * is_local
        maximum = values.amax(1)
        values.sub_(maximum.unsqueeze(1)).exp_()
        exponentials[:] = [(values, maximum)]
        return values.sum(1).log() + maximum, target_logit

    def gradient(
        logits: Tensor, log_sum: Tensor, target_logit: Tensor, index: Tensor, is_local: Tensor, counted: Tensor
    ) -> Tensor:
        ((values, maximum),) = exponentials
        result = values.mul_(((maximum - log_sum).exp() * counted).unsqueeze(1)).to(logits.dtype)
        return _set_target_gradient(result, log_sum, target_logit, index, is_local, counted)

    return statistics, gradient


@cache
def _compiled() -> _Functions:
    """Fuse the passes over the logits: each is read twice and written once."""
    return torch.compile(_statistics), torch.compile(_probability_gradient)


def _combine(log_sum: Tensor, target_logit: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, Tensor]:
    """Combine the statistics of the columns of all ranks, with one collective."""
    own = torch.stack([log_sum, target_logit])
    gathered = own.new_empty(group.size() * 2, own.size(1))
    dist.all_gather_into_tensor(gathered, own, group)
    return gathered[0::2].logsumexp(0), gathered[1::2].sum(0)


def _add_product(total: Tensor | None, a: Tensor, b: Tensor) -> Tensor:
    """Add a product to `total`, in place; None: 0. It is fp32: sums over many rows may exceed fp16's maximum."""
    if a.dtype != torch.float32 and a.device.type in MIXED_PRODUCT_DEVICES:
        if total is None:
            return torch.mm(a, b, out_dtype=torch.float32)
        return torch.addmm(total, a, b, out_dtype=torch.float32, out=total)
    return torch.mm(a.float(), b.float()) if total is None else total.addmm_(a.float(), b.float())
