"""The optimizer Muon for matrices that FSDP shards: one rank gathers the momentum and computes the update."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_gather_single
from torch.distributed.tensor import DTensor

from trainer.local_tensor import local_tensor

# Of the iteration of Newton-Schulz: Jordan et al., kellerjordan.github.io/posts/muon.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
# The root mean square of AdamW's updates: Liu et al., Muon is Scalable for LLM Training, arXiv 2502.16982.
UPDATE_RMS = 0.2


class Muon(torch.optim.Optimizer):
    """Muon (Jordan et al.) with updates of the size of AdamW's, so that both can have the same learning rate.

    `found_inf`, an attribute, is 1 if a gradient is not finite, as for AdamW: the step then changes nothing.

    The ranks of FSDP divide the matrices among them: a rank gets the shards of its matrix, and sends back the shards of
    its update. Ranks of tensor parallelism compute the same update.
    """

    def __init__(
        self, matrices: list[nn.Parameter], *, learning_rate: float, weight_decay: float, momentum: float
    ) -> None:
        super().__init__(matrices, {"lr": learning_rate, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update the matrices, all of which have gradients."""
        assert closure is None, "the gradients are computed before"
        (group,) = self.param_groups
        matrices = [_Matrix(parameter) for parameter in group["params"]]
        found_inf = getattr(self, "found_inf", matrices[0].local.new_zeros(()))
        is_skipped = found_inf > 0
        shard_group = matrices[0].shard_group
        assert all(matrix.shard_group == shard_group for matrix in matrices), (
            "all matrices of a pipeline stage have one mesh"
        )
        # Matrices of similar sizes are exchanged together: all ranks compute for a similar time.
        ordered = sorted(matrices, key=lambda matrix: -matrix.parameter.numel())
        ranks = dist.get_world_size(shard_group) if shard_group is not None else 1
        for start in range(0, len(ordered), ranks):
            batch = ordered[start : start + ranks]
            momenta = [self._momentum(matrix, group["momentum"], is_skipped) for matrix in batch]
            if shard_group is None:
                updates = [batch[0].compute_update(momenta[0])]
            else:
                updates = _compute_updates(batch, momenta, shard_group)
            for matrix, update in zip(batch, updates, strict=True):
                size = UPDATE_RMS * math.sqrt(max(matrix.parameter.shape))
                matrix.local.mul_(1 - group["lr"] * group["weight_decay"] * ~is_skipped)
                matrix.local.add_(update.masked_fill_(is_skipped, 0), alpha=-group["lr"] * size)

    def _momentum(self, matrix: "_Matrix", momentum: float, is_skipped: Tensor) -> Tensor:
        """Update the momentum of a matrix; return that of Nesterov, of this rank's shard, in bf16, which is finite."""
        state = self.state[matrix.parameter]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(matrix.parameter)
        assert matrix.parameter.grad is not None, "all matrices have gradients"
        buffer, gradient = local_tensor(state["momentum_buffer"]), local_tensor(matrix.parameter.grad)
        gradient.masked_fill_(is_skipped, 0)
        buffer.lerp_(gradient, (1 - momentum) * ~is_skipped)
        return gradient.lerp(buffer, momentum).bfloat16()


@dataclass(frozen=True)
class _Matrix:
    """A parameter, which FSDP may shard by rows and tensor parallelism by rows or columns."""

    parameter: nn.Parameter

    @property
    def local(self) -> Tensor:
        return local_tensor(self.parameter)

    @property
    def shard_group(self) -> dist.ProcessGroup | None:
        """The ranks between which FSDP divides the rows; None without FSDP."""
        return next((group for name, group, _ in self._sharded() if name == "shard"), None)

    def _sharded(self) -> Iterator[tuple[str, dist.ProcessGroup, int]]:
        """Yield the mesh dimensions along which the parameter is sharded: name, group, and dimension of the tensor."""
        if isinstance(self.parameter, DTensor):
            mesh = self.parameter.device_mesh
            for name, placement in zip(mesh.mesh_dim_names or (), self.parameter.placements, strict=True):
                if not placement.is_replicate():
                    yield name, mesh.get_group(name), placement.dim  # type: ignore[attr-defined]

    def unsharded_shape(self) -> tuple[int, int]:
        """Shape without FSDP: that of the part of tensor parallelism, whose sizes are divisible."""
        shape = list(self.parameter.shape)
        for name, group, dim in self._sharded():
            if name == "tensor":
                shape[dim] //= dist.get_world_size(group)
        return shape[0], shape[1]

    def elements_per_rank(self) -> list[int]:
        """Return the number of elements of each rank of `shard_group`, as FSDP divides the rows."""
        assert self.shard_group is not None
        rows, columns = self.unsharded_shape()
        ranks = dist.get_world_size(self.shard_group)
        rows_per_rank = math.ceil(rows / ranks)
        return [min(max(rows - rank * rows_per_rank, 0), rows_per_rank) * columns for rank in range(ranks)]

    def compute_update(self, momentum: Tensor) -> Tensor:
        """Return the update from the momentum, both without FSDP, (rows, columns)."""
        tensor = next(((group, dim) for name, group, dim in self._sharded() if name == "tensor"), None)
        if tensor is None:
            return newton_schulz(momentum)
        group, dim = tensor
        whole = newton_schulz(all_gather_single(momentum, dim, group))
        return whole.tensor_split(dist.get_world_size(group), dim)[dist.get_rank(group)]


def _compute_updates(batch: list[_Matrix], momenta: list[Tensor], shard_group: dist.ProcessGroup) -> list[Tensor]:
    """Return this rank's shards of the updates: rank i of the group computes the update of matrix i of the batch.

    momenta: this rank's shards of them. `batch` has at most as many matrices as there are ranks.
    """
    rank, ranks = dist.get_rank(shard_group), dist.get_world_size(shard_group)
    sent = [shard.numel() for shard in momenta] + [0] * (ranks - len(batch))
    received = batch[rank].elements_per_rank() if rank < len(batch) else [0] * ranks
    sends = torch.cat([shard.flatten() for shard in momenta])
    momentum = sends.new_empty(sum(received))
    dist.all_to_all_single(momentum, sends, received, sent, group=shard_group)
    update = momentum
    if rank < len(batch):
        update = batch[rank].compute_update(momentum.view(batch[rank].unsharded_shape())).flatten()
    dist.all_to_all_single(sends, update.contiguous(), sent, received, group=shard_group)
    parts = torch.split(sends, sent[: len(batch)])
    return [part.view_as(shard) for part, shard in zip(parts, momenta, strict=True)]


def newton_schulz(matrix: Tensor) -> Tensor:
    """Return an approximation of the orthogonal matrix nearest to `matrix`, which is bf16.

    Its singular values are between about 0.5 and 1.5, by Newton-Schulz iterations with COEFFICIENTS.
    """
    a, b, c = COEFFICIENTS
    tall = matrix.size(0) > matrix.size(1)
    x = matrix.T if tall else matrix
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x
