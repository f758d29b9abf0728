"""Tensor parallelism of the built-in decoder, with activations split along the sequence between the products."""

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)


def split_block(block: nn.Module, mesh: DeviceMesh) -> None:
    """Heads and hidden units are split; norms and what is between them take a piece of the sequence each."""
    whole = PrepareModuleInput(input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None))
    plan: dict[str, ParallelStyle] = {
        "attention_norm": SequenceParallel(),
        "attention": whole,
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


def split_ends(decoder: nn.Module, mesh: DeviceMesh) -> None:
    """The rows of the embedding and of the output layer are split; trainer/models/loss.py does the latter's product."""
    plan: dict[str, ParallelStyle] = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(),  # never called: its weight alone is used
    }
    own = {name: style for name, style in plan.items() if hasattr(decoder, name)}
    parallelize_module(decoder, mesh, own, src_data_rank=None)
