"""Tensor and sequence parallelism of the built-in decoder."""

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)


def parallelize_block(block: nn.Module, mesh: DeviceMesh) -> None:
    """Shard attention heads and hidden units; norms and residuals are sharded along the sequence."""
    gather_sequence = PrepareModuleInput(input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None))
    plan: dict[str, ParallelStyle] = {
        "attention_norm": SequenceParallel(),
        "attention": gather_sequence,
        "attention.queries": ColwiseParallel(),
        "attention.keys": ColwiseParallel(),
        "attention.values": ColwiseParallel(),
        "attention.out": RowwiseParallel(output_layouts=Shard(1)),
        "feed_forward_norm": SequenceParallel(),
        "feed_forward": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        "feed_forward.gate": ColwiseParallel(),
        "feed_forward.up": ColwiseParallel(),
        "feed_forward.out": RowwiseParallel(output_layouts=Shard(1)),
    }
    parallelize_module(block, mesh, plan, src_data_rank=None)


def parallelize_embedding_and_head(decoder: nn.Module, mesh: DeviceMesh) -> None:
    """Shard the rows of the embedding and of the output layer, whose collectives are in trainer/models/loss.py."""
    plan: dict[str, ParallelStyle] = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
    }
    present = {name: style for name, style in plan.items() if hasattr(decoder, name)}
    parallelize_module(decoder, mesh, present, src_data_rank=None)
    head = getattr(decoder, "head", None)
    if isinstance(head, nn.Linear):
        head.weight = nn.Parameter(distribute_tensor(head.weight, mesh, [Shard(0)], src_data_rank=None))
