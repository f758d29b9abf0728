"""Runs training steps of one rank with tensors without data, and returns their memory and collective operations."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import _disable_current_modes

from trainer.distributed import DistributedContext, build_distributed
from trainer.models import Model, build
from trainer.models import loss as loss_functions
from trainer.models.decoder import stages_of
from trainer.models.experts import expert_load_imbalance
from trainer.optimizer import build_optimizer
from trainer.parallelism import build_forward_backward, expert_parallel, parallelize, wrap_in_ddp
from trainer.parallelism.forward_backward import Batch
from trainer.parallelism.gradients import global_gradient_norm
from trainer.parallelism.parallelize import checkpoint_policy
from trainer.plan.collectives import CollectiveCounter, Total, Totals, add
from trainer.plan.compiled import trace_blocks
from trainer.plan.memory import Category, MemoryRecorder, tensors_of
from trainer.precision import Precision
from trainer.step import mean_over_ranks, update_weights
from trainer.telemetry.timing import StepTimer
from trainyard.config.training import TrainerConfig
from trainyard.config.training.models import ImageModelConfig

_STEPS = 2  # the first allocates the optimizer's state
_MICRO_BATCHES = 3  # of a step; those between the first and the last are equal
# Sizes of DistributedDataParallel's buckets, the first and the others, bytes (torch 2.15, nn/parallel/distributed.py).
_BUCKETS = [2**20, 25 * 2**20]


@dataclass(frozen=True, kw_only=True)
class RankPlan:
    """Memory and communication of one rank. `memory`: bytes of each category at the peak of a step."""

    rank: int
    memory: Mapping[Category, int]
    collectives: Totals  # of one step, the largest number of bytes first

    @property
    def peak_bytes(self) -> int:
        """Largest sum of the sizes of all tensors."""
        return sum(self.memory.values())


def plan_rank(config: TrainerConfig, world_size: int, per_node: int, rank: int, *, compiled: bool) -> RankPlan:
    """Plan one rank of `world_size`, `per_node` on each node.

    `compiled`: whether torch.compile compiles the blocks, which are those of the decoder then. The call must be the
    first of its process, because DTensor caches process groups. Raises InputError if the model cannot be built.
    """
    with _fake_process_group(rank, world_size), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about operations that a GPU does not run
        world = dist.group.WORLD
        assert world is not None, "it is initialized"
        distributed = build_distributed(config, world_size, per_node, torch.device("cpu"), lambda _: world)
        steps = _Steps(config, distributed, compiled=compiled)
        model = build(steps.config, distributed.pipeline_stage)
        with _as_on_gpus(), FakeTensorMode(allow_non_fake_inputs=True), steps.recorder:
            collectives = steps.run(model)
        ordered = dict(sorted(collectives.items(), key=lambda item: -item[1].bytes))
        return RankPlan(rank=rank, memory=steps.recorder.peak(), collectives=ordered)


class _Steps:
    """Steps of one rank, which call the functions of the training loop."""

    def __init__(self, config: TrainerConfig, distributed: DistributedContext, *, compiled: bool) -> None:
        checkpointing = config.memory.activation_checkpointing
        changes: dict[str, Any] = {"compile": False}
        if compiled:  # the traced blocks apply it
            changes["activation_checkpointing"] = "none"
        self.config = config.model_copy(update={"memory": config.memory.model_copy(update=changes)})
        self._compiled, self._policy = compiled, checkpoint_policy(checkpointing)
        self._accumulation = count = distributed.layout.accumulation
        simulated = min(count, _MICRO_BATCHES) if distributed.layout.pipeline == 1 else count
        self._distributed = replace(distributed, layout=replace(distributed.layout, accumulation=simulated))
        self._counter = CollectiveCounter(_group_names(distributed))
        self._micro_batches: list[Totals] = []  # collectives of each; those of the optimizer are in the last
        self._vocabulary: int | None = None  # columns of the logits on this rank
        self.recorder = MemoryRecorder(self._observe)

    def run(self, model: Model) -> Totals:
        """Run the steps; return the collectives of one."""
        config, distributed = self.config, self._distributed
        precision = Precision(config, distributed.device)
        self._vocabulary = model.vocabulary // distributed.layout.tensor
        parallelize(_without_data(model), config, distributed, precision)
        if self._compiled:
            trace_blocks(model.blocks.values(), self._policy)
        module = wrap_in_ddp(model, config, distributed) if config.parallel.sharded else model.module
        parameters = list(model.module.parameters())
        self.recorder.label(parameters, "parameters")
        for stage in stages_of(model.module):
            self.recorder.label(stage.buffers(), "buffers")
        optimizer = build_optimizer(model, config.optimizer)
        forward_backward = build_forward_backward(module, config, distributed, precision)
        for _ in range(_STEPS):
            self._micro_batches.clear()
            self._counter.take()
            loss = forward_backward.compute_gradients(self._batches(), StepTimer(distributed.device))
            self.recorder.label((parameter.grad for parameter in parameters), "gradients")
            if distributed.gradient_group is not None and not config.parallel.sharded:
                self._count_ddp(parameters, distributed.gradient_group)
            with self.recorder.allocating("optimizer"):
                loss, share = mean_over_ranks(loss, distributed.layout.loss_ranks)
                norm = global_gradient_norm(parameters, distributed.pipeline_group) / share
                if forward_backward.expert_shares is not None:
                    expert_load_imbalance(forward_backward.expert_shares)
                update_weights(optimizer, parameters, loss, norm, clip_norm=1.0, scale=share)
            self.recorder.label(optimizer.state.values(), "optimizer")
            optimizer.zero_grad()
            self._micro_batches.append(self._counter.take())
        return self._whole_step()

    def _whole_step(self) -> Totals:
        """Return the collectives of a step, with those of the micro-batches that were not simulated."""
        skipped = self._accumulation - self._distributed.layout.accumulation
        if not skipped:
            return add(*self._micro_batches)
        repeated = {operation: total.times(skipped) for operation, total in self._micro_batches[1].items()}
        return add(*self._micro_batches, repeated)

    def _batches(self) -> Iterator[Batch]:
        model, size = self.config.model, self.config.micro_batch_size
        while True:
            if isinstance(model, ImageModelConfig):
                pixels = torch.empty(size, 3, model.image_size, model.image_size, dtype=torch.uint8)
                yield pixels, torch.empty(size, dtype=torch.int64)
            else:
                tokens = torch.empty(size, model.sequence_length, dtype=torch.int64)
                yield tokens, torch.empty_like(tokens)
            self._micro_batches.append(self._counter.take())

    def _count_ddp(self, parameters: list[nn.Parameter], group: dist.ProcessGroup) -> None:
        """Count the operations of DistributedDataParallel, which does not run without data: one for each bucket."""
        size, buckets, limit = 0, 1, 0
        for parameter in reversed(parameters):
            size += (change := parameter.numel() * parameter.element_size())
            limit += change
            if limit >= _BUCKETS[min(buckets, len(_BUCKETS)) - 1]:
                buckets, limit = buckets + 1, 0
        total = Total(buckets if limit else buckets - 1, size)
        self._counter.count("all_reduce", group.group_name, total)

    def _observe(self, function: Any, values: Any) -> None:
        """Count collectives, and assign categories to the tensors of an operation. `values`: arguments and result."""
        self._counter.observe(function, values)
        name = function.overloadpacket.__name__
        if category := _CATEGORIES.get(name):
            self._relabel(values, category)
        for tensor in tensors_of(values[-1]):
            if tensor.dim() > 1 and tensor.size(-1) == self._vocabulary and tensor.is_floating_point():
                self._relabel([tensor], "logits")
        if name == "_to_copy" and self.recorder.category_of(values[0]) == "parameters":
            self._relabel([values[-1]], "gathered")

    def _relabel(self, tensors: Any, category: Category) -> None:
        """Assign a category to those tensors that have none other than activations."""
        changed = (each for each in tensors_of(tensors) if self.recorder.category_of(each) == "activations")
        self.recorder.label(changed, category)


# Operations of fully_shard -> the category of their arguments and results.
_CATEGORIES: Mapping[str, Category] = {
    "all_gather_copy_in": "gathered",
    "_allgather_base_": "gathered",
    "split_with_sizes_copy": "gathered",
    "chunk_cat": "gradients",
    "chunk_cat_mixed_dtype": "gradients",
    "_reduce_scatter_base_": "gradients",
}


@contextmanager
def _fake_process_group(rank: int, world_size: int) -> Iterator[None]:
    dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def _as_on_gpus() -> Iterator[None]:
    """Let the loss run as on GPUs, and fully_shard combine device meshes, which have values, without fake tensors.

    The tensors are on the CPU, because torch runs no backward pass of fake tensors on a GPU that does not exist.
    """
    concatenate = DeviceMesh._concatenate

    def combine(meshes: list[DeviceMesh]) -> DeviceMesh:
        with _disable_current_modes():
            return concatenate(meshes)

    with (
        patch.object(DeviceMesh, "_concatenate", staticmethod(combine)),
        patch.object(loss_functions, "MIXED_PRODUCT_DEVICES", {"cpu"}),
        patch.object(loss_functions, "_eager", lambda: (_fused_statistics, _fused_gradient)),
        patch.object(expert_parallel, "row_counts_by_rank", _equal_row_numbers),
    ):
        yield


def _equal_row_numbers(rows: int, _counts: Tensor, _received: Tensor, ranks: int) -> tuple[list[int], list[int]]:
    """Return the numbers of exchanged rows if all ranks have the same load."""
    numbers = [rows // ranks + (rank < rows % ranks) for rank in range(ranks)]
    return numbers, [rows // ranks] * (ranks - 1) + [rows - rows // ranks * (ranks - 1)]


def _fused_statistics(logits: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
    """Allocate what the compiled function of the loss allocates: its results."""
    return logits.new_empty(len(logits), dtype=torch.float32), logits.new_empty(len(logits), dtype=torch.float32)


def _fused_gradient(logits: Tensor, *_: Tensor) -> Tensor:
    return torch.empty_like(logits)


def _group_names(distributed: DistributedContext) -> dict[str, tuple[str, int]]:
    """Return the name of each process group in torch -> its dimensions and its number of ranks."""
    groups = {
        "all": distributed.checkpoint_group,
        "data": distributed.gradient_group,
        "context": distributed.context_group,
    }
    for mesh in (distributed.mesh, distributed.expert_mesh):
        groups |= {} if mesh is None else {name: mesh.get_group(name) for name in mesh.mesh_dim_names or ()}
    return {group.group_name: (name, group.size()) for name, group in groups.items() if group is not None}


def _without_data(model: Model) -> Model:
    """Return a model whose parameters have no data. `parallelize` allocates them."""
    if model.initialize is not None:
        return model
    replaced: dict[int, nn.Parameter] = {}  # two names may share a parameter
    for module in model.module.modules():
        for key, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[key] = replaced.setdefault(id(parameter), nn.Parameter(parameter.to("meta")))
    return replace(model, initialize=lambda _name, _module: None)
