"""Mixture of experts: a router assigns each token to some of a layer's feed-forward networks, the experts.

No token is dropped: an expert has no capacity limit (dropless). The layer and the names of its submodules are those of
Qwen3-MoE in transformers, with the weights of all experts in one parameter each.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from trainer.local_tensor import local_tensor
from trainyard.config.training.models import DecoderConfig

MATRICES = ("gate_proj", "up_proj", "down_proj")
Compute = Callable[[Tensor, Tensor], Tensor]
# Sends rows to the ranks of their experts, computes there with the function, and returns the results.
Exchange = Callable[[Tensor, Tensor, Compute], Tensor]


class Experts(nn.Module):
    """The feed-forward networks of a layer, with SwiGLU: a weight is (experts, outputs, inputs).

    With expert parallelism a rank's parameters have the weights of its experts, and `exchange` is set.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        assert config.experts is not None
        assert config.expert_intermediate_size is not None
        inner = (config.experts, config.expert_intermediate_size, config.dim)
        self.gate_proj = nn.Parameter(torch.empty(inner))
        self.up_proj = nn.Parameter(torch.empty(inner))
        self.down_proj = nn.Parameter(torch.empty(config.experts, config.dim, config.expert_intermediate_size))
        self.exchange: Exchange | None = None

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Return the outputs of the experts for `rows`, (rows, dim), which are in the order of their experts.

        counts: (experts,), int32: number of rows of each expert.
        """
        return self._compute(rows, counts) if self.exchange is None else self.exchange(rows, counts, self._compute)

    def _compute(self, rows: Tensor, counts: Tensor) -> Tensor:
        gates = expert_product(rows, local_tensor(self.gate_proj), counts)
        hidden = functional.silu(gates) * expert_product(rows, local_tensor(self.up_proj), counts)
        return expert_product(hidden, local_tensor(self.down_proj), counts)


def expert_product(rows: Tensor, weights: Tensor, counts: Tensor) -> Tensor:
    """Return the product of the rows of each expert with its weights, which are converted to the type of the rows.

    rows: (rows, inputs), weights: (experts, outputs, inputs), counts: (experts,), result: (rows, outputs).
    """
    converted: Tensor = _ZeroUnusedGradients.apply(weights.to(rows.dtype), counts)  # autocast does not convert them
    return functional.grouped_mm(rows, converted.transpose(1, 2), offs=counts.cumsum(0, dtype=torch.int32))


class ExpertLayer(nn.Module):
    """A feed-forward layer of experts with its router."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        assert config.experts is not None
        assert config.experts_per_token is not None
        self._experts, self._per_token = config.experts, config.experts_per_token
        self.gate = nn.Linear(config.dim, config.experts, bias=False)
        self.experts = Experts(config)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output, with the shape of x, (batch, length, dim), and the router's `routing_shares`."""
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        tokens = x.flatten(0, 1)
        probabilities = self.gate(tokens).softmax(-1, dtype=torch.float32)
        weights, chosen = probabilities.topk(self._per_token)
        weights = weights / weights.sum(-1, keepdim=True)
        # Two tokens with the experts (2, 0) and (0, 1): `experts` is 0 0 1 2, `order` is 1 2 3 0 (assignment of each
        # row), and `position` is 3 0 1 2 (row of each assignment). The tokens of the rows are `order // 2`: 0 1 1 0.
        experts, order = chosen.flatten().sort(stable=True)
        position = order.argsort()
        counts = self._count(experts)
        rows = permute_rows(tokens, order // self._per_token, position, self._per_token)
        results = permute_rows(self.experts(rows, counts), position, order)
        results = results.view(len(tokens), self._per_token, -1)
        output = torch.bmm(weights.to(results.dtype).unsqueeze(1), results)
        return output.view_as(x), routing_shares(counts, probabilities)

    def _count(self, experts: Tensor) -> Tensor:
        """Return the number of rows of each expert, int32, from the experts of all rows in order."""
        numbers = torch.arange(self._experts, device=experts.device)
        ends = torch.searchsorted(experts, numbers, right=True, out_int32=True)
        return ends.diff(prepend=ends.new_zeros(1))


def routing_shares(counts: Tensor, probabilities: Tensor) -> Tensor:
    """Return (2, experts), fp32: each expert's share of the rows, and its mean probability, which has a gradient.

    counts: (experts,); probabilities: (tokens, experts).
    """
    return torch.stack([counts / counts.sum(), probabilities.mean(0)])


def add_gradient(loss: Tensor, auxiliary: Tensor) -> Tensor:
    """Return `loss` unchanged, with the gradient of `loss` plus `auxiliary`."""
    return loss + (auxiliary - auxiliary.detach())


def load_balancing_loss(rows: Tensor, probabilities: Tensor, experts_per_token: int) -> Tensor:
    """Return the mean over layers of k N sum_i f_i P_i for N experts, of which each token has k.

    It is k if all experts have equal shares. rows: (layers, experts), f; probabilities: (layers, experts), P: those of
    `routing_shares`. Source: Fedus et al., Switch Transformer, arXiv 2101.03961, equation 4. The factor k is that of
    transformers, which has f of each choice; it multiplies the means of f and P over layers, not their products.
    """
    return experts_per_token * rows.size(-1) * (rows * probabilities).sum(-1).mean()


def expert_load_imbalance(shares: Tensor) -> Tensor:
    """Return the largest share of an expert over the mean share, in the layer where it is largest: 1 if balanced.

    shares: (layers, experts): shares of the rows of this rank, which is changed to those of all ranks.
    """
    dist.all_reduce(shares)
    return (shares.amax(1) / shares.mean(1)).max()


def permute_rows(x: Tensor, index: Tensor, position: Tensor, copies: int = 1) -> Tensor:
    """Return x[index], which has `copies` copies of each row. position: for the copies of each row, where they are."""
    rows: Tensor = _PermuteRows.apply(x, index, position, copies)
    return rows


class _ZeroUnusedGradients(torch.autograd.Function):
    """The gradient of the weights is 0 for experts without rows, for which torch's product may not write it.

    On Blackwell GPUs it has arbitrary values there: github.com/pytorch/pytorch/issues/172439.
    """

    @staticmethod
    def forward(ctx: Any, weights: Tensor, counts: Tensor) -> Tensor:
        ctx.save_for_backward(counts)
        return weights.view_as(weights)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        (counts,) = ctx.saved_tensors
        return gradients[0].masked_fill((counts == 0).view(-1, 1, 1), 0), None


class _PermuteRows(torch.autograd.Function):
    """The backward pass sums the gradients of copies without atomic operations: it is deterministic on GPUs, too.

    It also rounds a 16-bit sum once, not with each of its terms.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, position: Tensor, copies: int) -> Tensor:
        ctx.save_for_backward(position)
        ctx.copies = copies
        return x[index]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        (position,) = ctx.saved_tensors
        gradient = gradients[0][position]
        if ctx.copies > 1:
            gradient = gradient.view(-1, ctx.copies, gradient.size(-1)).sum(1)
        return gradient, None, None, None
