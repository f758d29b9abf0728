"""Initialize a model and parallelize it block by block, so that a device holds at most its shard and one block.

The decoder starts on the `meta` device, so it uses no more host memory. Models of libraries and of the user are built
in host memory.
"""

import hashlib
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import nn
from torch._inductor import config as inductor_config
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from trainer.distributed import DistributedContext
from trainer.low_precision import convert_linear_layers
from trainer.models.context_parallel import ContextShard
from trainer.models.decoder import Attention, Block, Decoder, stages_of
from trainer.models.model import Initialize, Model
from trainer.parallelism.expert_parallel import distribute_experts, divide_expert_gradients, placement_of_experts
from trainer.parallelism.tensor_parallel import parallelize_block, parallelize_embedding_and_head
from trainer.precision import Precision
from trainyard.config.training import TrainerConfig
from trainyard.config.training.low_precision import LOW_PRECISIONS
from trainyard.config.training.models import DecoderConfig
from trainyard.errors import InputError, Problem


def parallelize(model: Model, config: TrainerConfig, distributed: DistributedContext, precision: Precision) -> None:
    """Initialize the weights; apply tensor parallelism, activation checkpointing, compilation and FSDP, in place.

    Raises InputError for settings of blocks if the model has none.
    """
    _require_blocks(model, config)
    module, memory = model.module, config.memory
    on_gpu = distributed.device.type == "cuda"
    compiled = memory.compile if memory.compile is not None else on_gpu
    tensor = distributed.mesh["tensor"] if config.parallel.tensor > 1 else None
    if compiled:
        set_async_tensor(enabled=config.parallel.async_tensor)
    if on_gpu and getattr(config.model, "synchronize_batch_norm", False):
        nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-untyped-call]  # in place
    if config.precision in LOW_PRECISIONS:
        convert_linear_layers(model.blocks, config, on_gpu=on_gpu)
    set_context_shard(module, distributed.context_shard)
    for name, block in model.blocks.items():
        _materialize(block, name, model, config.seed, distributed.device)
        if tensor is not None:
            parallelize_block(block, tensor)
        if distributed.expert_mesh is not None:
            distribute_experts(block, distributed.expert_mesh["expert"])
        if memory.activation_checkpointing != "none":
            _apply_activation_checkpointing(block, selective=memory.activation_checkpointing == "selective")
        if compiled and distributed.expert_mesh is not None:
            # The numbers of exchanged rows are needed on the host: a graph would end there, also in recomputation.
            block.get_submodule("self_attn").compile(fullgraph=True)
        elif compiled:
            # The parts of a library's block that torch cannot compile run uncompiled; of our decoder that is an error.
            block.compile(fullgraph=isinstance(config.model, DecoderConfig))
        if config.parallel.sharded:
            _shard(block, config, distributed, precision)
            if distributed.expert_mesh is not None:
                divide_expert_gradients(cast(FSDPModule, block), distributed.expert_mesh)
    for stage in stages_of(module):
        _materialize(stage, "", model, config.seed, distributed.device)
    if tensor is not None:
        parallelize_embedding_and_head(module, tensor)
    if config.parallel.sharded:
        if isinstance(config.model, DecoderConfig) and not config.model.tie_embeddings:
            _shard_embedding_and_head(module, config, distributed, precision)
        # Parameters that are in no other unit are gathered during the whole forward pass, and needed first in the
        # backward pass.
        for stage in stages_of(module):
            _shard(stage, config, distributed, precision, reshard=False)


def _require_blocks(model: Model, config: TrainerConfig) -> None:
    """Raise InputError if a setting applies to blocks, and the model has none."""
    settings = {"activation_checkpointing": config.memory.activation_checkpointing, "compile": config.memory.compile}
    if model.blocks:
        return
    for key, value in settings.items():
        if value not in ("none", None, False):
            reason = "applies to blocks, and the model has none: no nn.ModuleList or nn.Sequential of one class"
            fix = "Remove it, or put the layers of the model into an nn.ModuleList"
            raise InputError([Problem(f"config.memory.{key}", value, reason, fix, "model_without_blocks")])


def set_context_shard(module: nn.Module, shard: ContextShard | None) -> None:
    """Set the context shard of this rank in a model, also after a recovery, which creates new process groups."""
    for stage in stages_of(module):
        for each in stage.modules():
            if isinstance(each, Decoder | Attention):
                each.context_shard = shard


def set_async_tensor(*, enabled: bool) -> None:
    """Let torch.compile overlap matrix products with the collectives before and after them, part by part.

    Wang et al., Overlap Communication with Dependent Computation via Decomposition, ASPLOS 2023.
    """
    inductor_config._micro_pipeline_tp = enabled


def _shard_embedding_and_head(
    decoder: nn.Module, config: TrainerConfig, distributed: DistributedContext, precision: Precision
) -> None:
    """Shard the embedding as one unit of FSDP, and norm and head as another.

    The embedding is gathered for its forward pass only: its gradient does not depend on its weight.
    """
    parts = dict(decoder.named_children())  # those of a pipeline stage
    if "embed_tokens" in parts:
        _shard(parts["embed_tokens"], config, distributed, precision)
        if config.parallel.pipeline == 1:
            cast(FSDPModule, parts["embed_tokens"]).set_unshard_in_backward(False)
    if "lm_head" in parts:  # the backward pass starts with it
        _shard([parts["norm"], parts["lm_head"]], config, distributed, precision, reshard=False)


def wrap_in_ddp(
    model: Model, config: TrainerConfig, distributed: DistributedContext, *, init_sync: bool = True
) -> nn.Module:
    """Return the module to call: `model.module` if it is sharded, else DistributedDataParallel around it.

    `init_sync`: all ranks of DistributedDataParallel take the weights of the first rank.
    """
    if config.parallel.sharded:
        return model.module
    device = distributed.device
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # about a new name of broadcast_buffers
        return DistributedDataParallel(
            model.module,
            device_ids=[device.index] if device.type == "cuda" else None,
            broadcast_buffers=False,
            gradient_as_bucket_view=True,
            init_sync=init_sync,
        )


def _materialize(module: nn.Module, name: str, model: Model, seed: int, device: torch.device) -> None:
    """Allocate memory on the device and initialize weights by (seed, name): the same for each layout.

    Blocks must be materialized before the module that contains them.
    """
    materialized: dict[int, nn.Parameter] = {}  # two names may share a parameter
    for submodule_name, submodule in _submodules(module, name, set(model.blocks.values()) - {module}):
        parameters = dict(submodule.named_parameters(recurse=False, remove_duplicate=False))
        has_meta = any(parameter.is_meta for parameter in parameters.values())
        for key, parameter in parameters.items():
            if parameter.is_meta:
                values = torch.empty_like(parameter, device=device)
                allocated = nn.Parameter(values, requires_grad=parameter.requires_grad)
                setattr(submodule, key, materialized.setdefault(id(parameter), allocated))
            else:
                parameter.data = parameter.data.to(device)
        for key, buffer in list(submodule.named_buffers(recurse=False, remove_duplicate=False)):
            setattr(submodule, key, buffer.to(device))
        if has_meta:
            assert model.initialize is not None, "a model on the meta device has an initialize function"
            _initialize(submodule_name, submodule, model.initialize, seed, device)


def _submodules(module: nn.Module, name: str, excluded: set[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    yield name, module
    for child_name, child in module.named_children():
        if child not in excluded:
            yield from _submodules(child, f"{name}.{child_name}" if name else child_name, excluded)


@torch.no_grad()
def _initialize(name: str, module: nn.Module, initialize: Initialize, seed: int, device: torch.device) -> None:
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        initialize(name, module)


def _shard(
    modules: nn.Module | list[nn.Module],
    config: TrainerConfig,
    distributed: DistributedContext,
    precision: Precision,
    *,
    reshard: bool = True,
) -> None:
    """Apply fully_shard to a module, or to several as one unit. `reshard`: free gathered parameters after forward."""
    mesh = distributed.mesh["shard"] if distributed.layout.replicate == 1 else distributed.mesh["replicate", "shard"]
    # A pipeline runs a stage's forward and backward passes several times per step.
    reshard = reshard and config.parallel.reshard_after_forward and config.parallel.pipeline == 1
    # The inputs of a decoder block are the residual stream, which has the type, and the rotary table, which is fp32.
    policy = precision.policy(modules, cast_inputs=not isinstance(modules, Block))
    has_experts = isinstance(config.model, DecoderConfig) and config.model.experts is not None
    placement = placement_of_experts(distributed.expert_mesh, distributed.layout.shard) if has_experts else None
    fully_shard(modules, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard, shard_placement_fn=placement)


# Operations whose outputs selective checkpointing saves: they take most of the time.
_SAVED_OPERATIONS = {
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten._grouped_mm.default,
    torch.ops.aten._scaled_mm.default,
    torch.ops.aten._scaled_mm_v2.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.torch_attn._varlen_attn.default,
    torch.ops.aten.convolution.default,
    # Not all_gather: with tensor and context parallelism its result has the whole sequence.
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
    torch.ops._c10d_functional.all_reduce.default,
    torch.ops._c10d_functional.all_to_all_single.default,
}


def _selective_policy(operation: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in _SAVED_OPERATIONS else CheckpointPolicy.PREFER_RECOMPUTE


def _policy(_context: Any, operation: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    return _selective_policy(operation)


def checkpoint_policy(mode: Literal["none", "selective", "full"]) -> Callable[[Any], CheckpointPolicy] | None:
    """Return which outputs of operations a block saves for its backward pass; None: all."""
    if mode == "full":
        return lambda _: CheckpointPolicy.MUST_RECOMPUTE
    return _selective_policy if mode == "selective" else None


def _apply_activation_checkpointing(block: nn.Module, *, selective: bool) -> None:
    """Apply activation checkpointing to a block; its parameters keep their names."""
    context: dict[str, Any] = (
        {"context_fn": partial(create_selective_checkpoint_contexts, _policy)} if selective else {}
    )
    forward = block.forward

    # A function, not a partial: torch.compile skips a partial of a torch function and all functions that it calls.
    def checkpointed_forward(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, **context, **kwargs)

    block.forward = checkpointed_forward
