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
    gather_sequence = PrepareModuleInput(
        input_layouts=(Shard(1), None, None), desired_input_layouts=(Replicate(), None, None)
    )
    plan: dict[str, ParallelStyle] = {
        "input_layernorm": SequenceParallel(),
        "self_attn": gather_sequence,
        "self_attn.q_proj": ColwiseParallel(),
        "self_attn.k_proj": ColwiseParallel(),
        "self_attn.v_proj": ColwiseParallel(),
        "self_attn.o_proj": RowwiseParallel(output_layouts=Shard(1)),
        "post_attention_layernorm": SequenceParallel(),
        "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        "mlp.gate_proj": ColwiseParallel(),
        "mlp.up_proj": ColwiseParallel(),
        "mlp.down_proj": RowwiseParallel(output_layouts=Shard(1)),
    }
    for norm in ("q_norm", "k_norm"):
        if hasattr(block.self_attn, norm):  # its input has the rank's heads in dimension 2
            plan[f"self_attn.{norm}"] = SequenceParallel(sequence_dim=2, use_local_output=True)
    parallelize_module(block, mesh, plan, src_data_rank=None)


def parallelize_embedding_and_head(decoder: nn.Module, mesh: DeviceMesh) -> None:
    """Shard the rows of the embedding and of the output layer, whose collectives are in trainer/models/loss.py."""
    plan: dict[str, ParallelStyle] = {
        "embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
    }
    present = {name: style for name, style in plan.items() if hasattr(decoder, name)}
    parallelize_module(decoder, mesh, present, src_data_rank=None)
    head = getattr(decoder, "lm_head", None)
    if isinstance(head, nn.Linear):
        head.weight = nn.Parameter(distribute_tensor(head.weight, mesh, [Shard(0)], src_data_rank=None))
