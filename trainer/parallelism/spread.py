"""A model is brought to the ranks, block by block, so that no device ever holds more than its share and one block.

What is on `meta` till then, the decoder, takes no more of a host's memory either. A library's model is whole there."""

import hashlib
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from trainer.models.built import Initialize, Model
from trainer.models.decoder import Block
from trainer.parallelism.tensor import split_block, split_ends
from trainer.precision import Precision, to_float8
from trainer.ranks import Ranks
from trainyard.config.training import TrainerConfig
from trainyard.config.training.models import DecoderConfig


def spread(model: Model, config: TrainerConfig, ranks: Ranks, precision: Precision) -> nn.Module:
    """Give the model its weights, and spread it. Returns the module to call: the bare one, or DDP around it."""
    module, memory = model.module, config.memory
    on_gpu = ranks.device.type == "cuda"
    compiled = memory.compile if memory.compile is not None else on_gpu
    tensor = ranks.mesh["tensor"] if config.parallel.tensor > 1 else None
    if on_gpu and getattr(config.model, "synchronize_batch_norm", False):
        nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-untyped-call]  # in place
    if config.precision == "float8":
        to_float8(model.blocks)
    for name, block in model.blocks.items():
        _materialize(block, name, model, config.seed, ranks.device)
        if tensor is not None:
            split_block(block, tensor)
        if memory.activation_checkpointing != "none":
            _recompute(block, selective=memory.activation_checkpointing == "selective")
        if compiled:
            # What torch can't compile of a library's blocks runs as it is. Ours it can: else that is an error.
            block.compile(fullgraph=isinstance(config.model, DecoderConfig))
        if config.parallel.sharded:
            _shard(block, config, ranks, precision)
    _materialize(module, "", model, config.seed, ranks.device)
    if tensor is not None:
        split_ends(module, tensor)
    if config.parallel.sharded:
        _shard(module, config, ranks, precision)
        return module
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of another name for broadcast_buffers
        return DistributedDataParallel(
            module,
            device_ids=[ranks.device.index] if on_gpu else None,
            broadcast_buffers=False,
            gradient_as_bucket_view=True,
        )


def _materialize(module: nn.Module, name: str, model: Model, seed: int, device: torch.device) -> None:
    """Memory on the device, and weights drawn by (seed, name): the same however they are spread. Blocks come before."""
    brought: dict[int, nn.Parameter] = {}  # a parameter may stand in two places
    for own, part in _parts(module, name, set(model.blocks.values()) - {module}):
        drawn = [key for key, each in part._parameters.items() if each is not None and each.is_meta]
        for key, each in part._parameters.items():
            if each is not None and each.is_meta:
                absent = brought.setdefault(id(each), nn.Parameter(torch.empty_like(each, device=device)))
                part._parameters[key] = absent
            elif each is not None:
                each.data = each.data.to(device)
        for key, buffer in part._buffers.items():
            part._buffers[key] = None if buffer is None else buffer.to(device)
        if drawn:
            assert model.initialize is not None, "weights without memory have somebody who draws them"
            _draw(own, part, model.initialize, seed, device)


def _parts(module: nn.Module, name: str, but: set[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    yield name, module
    for own, child in module.named_children():
        if child not in but:
            yield from _parts(child, f"{name}.{own}" if name else own, but)


@torch.no_grad()
def _draw(name: str, part: nn.Module, initialize: Initialize, seed: int, device: torch.device) -> None:
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        initialize(name, part)


def _shard(module: nn.Module, config: TrainerConfig, ranks: Ranks, precision: Precision) -> None:
    mesh = ranks.mesh["shard"] if ranks.layout.replicate == 1 else ranks.mesh["replicate", "shard"]
    # A pipeline calls a stage's forward and backward passes many times a step.
    reshard = config.parallel.reshard_after_forward and config.parallel.pipeline == 1
    # A decoder's block gets the residual stream, of the right type already, and the table of angles, which stays fp32.
    casts = not isinstance(module, Block)
    policy = precision.policy(module, casts_inputs=casts)
    fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)


# What costs the most to compute again: matrix products and attention. All else is cheap beside them.
_KEPT = {
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten._scaled_mm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten.convolution.default,
}


def _policy(context: Any, operation: Any, *arguments: Any, **named: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE


def _recompute(block: nn.Module, *, selective: bool) -> None:
    """Its forward pass is done again as its gradients are made; its parameters keep their names."""
    kept: dict[str, Any] = {"context_fn": partial(create_selective_checkpoint_contexts, _policy)} if selective else {}
    forward = block.forward

    # A function of its own: torch.compile silently leaves out a partial of torch's, and with it all that it calls.
    def recomputed(*arguments: Any, **named: Any) -> Any:
        return checkpoint(forward, *arguments, use_reentrant=False, **kept, **named)

    block.forward = recomputed
