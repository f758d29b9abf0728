"""Expert parallelism: the ranks of a group have different experts, and send each other the tokens for them."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, ShardPlacementResult
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from trainer.models.experts import MATRICES, Compute, ExpertLayer, permute_rows


def distribute_experts(block: nn.Module, mesh: DeviceMesh) -> None:
    """Keep the weights of this rank's experts of a block only, in place. `mesh`: the ranks of a group."""
    layer = block.get_submodule("mlp")
    assert isinstance(layer, ExpertLayer)
    for name in MATRICES:
        whole: nn.Parameter = getattr(layer.experts, name)
        part = distribute_tensor(whole.detach(), mesh, [Shard(0)], src_data_rank=None)
        setattr(layer.experts, name, nn.Parameter(part, requires_grad=whole.requires_grad))
    layer.experts.exchange = TokenExchange(mesh.get_group())


def placement_of_experts(
    mesh: DeviceMesh | None, ranks: int
) -> Callable[[nn.Parameter], ShardPlacementResult | Shard | None]:
    """Return the function by which fully_shard places a parameter: experts over the ranks of `expert_shard`.

    A rank has whole experts if their number is a multiple of the ranks. Otherwise it has rows of each, so that all
    ranks have parts of the same size. Without expert parallelism `mesh` is None, and `ranks` have the shards.
    """
    shards = None if mesh is None else FSDPMeshInfo(mesh["expert_shard"], shard_mesh_dim=0)  # compared by identity
    ranks = ranks if shards is None else shards.shard_mesh_size

    def placement(parameter: nn.Parameter) -> ShardPlacementResult | Shard | None:
        if parameter.dim() < 3:  # no experts
            return None
        experts, rows, _ = (parameter.to_local() if isinstance(parameter, DTensor) else parameter).shape
        shard = Shard(1 if experts % ranks > 0 and rows % ranks == 0 else 0)
        return shard if shards is None else ShardPlacementResult(shard, shards)

    return placement


def divide_expert_gradients(block: FSDPModule, mesh: DeviceMesh) -> None:
    """Divide the gradients of a block by the number of data parallel ranks.

    FSDP divides a sum by the number of its ranks. That of an expert is over the ranks of `expert_shard`, each of which
    has the sum over the tokens of its group.
    """
    block.set_gradient_divide_factor(mesh.size())
    if mesh["expert_shard"].size() > 1:  # with one rank torch 2.15 would divide twice
        block.set_force_sum_reduction_for_comms(True)  # gloo has no operation that multiplies and sums


class TokenExchange:
    """Sends rows to the ranks of their experts, and returns the results to the ranks of the tokens."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group

    def __call__(self, rows: Tensor, counts: Tensor, compute: Compute) -> Tensor:
        """Return the outputs of the experts for this rank's rows: two exchanges of rows, and one of their numbers.

        The arguments are those of `Experts.forward`; `compute` is called with the rows for the experts of this rank.
        """
        received_counts = all_to_all_single(counts, None, None, self.group)  # by rank, then by expert
        sent, received = row_counts_by_rank(len(rows), counts, received_counts, self.group.size())
        arrived = all_to_all_single(rows, received, sent, self.group)
        by_rank = received_counts.view(self.group.size(), -1)
        experts = torch.arange(by_rank.size(1), device=rows.device).repeat(len(by_rank))
        order = experts.repeat_interleave(received_counts, output_size=len(arrived)).argsort(stable=True)
        position = order.argsort()
        results = compute(permute_rows(arrived, order, position), by_rank.sum(0, dtype=torch.int32))
        return all_to_all_single(permute_rows(results, position, order), sent, received, self.group)


def row_counts_by_rank(rows: int, counts: Tensor, received_counts: Tensor, ranks: int) -> tuple[list[int], list[int]]:
    """Return the numbers of rows to each rank of a group and from each: torch needs them on the host, which waits.

    rows: their sum, before the exchange.
    """
    sent, received = torch.stack([counts, received_counts]).view(2, ranks, -1).sum(2).tolist()
    return sent, received
