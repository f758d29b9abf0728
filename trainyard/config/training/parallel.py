"""Parallelism of a model, its batch and its sequences over the ranks of a job."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import lcm
from typing import Literal

from pydantic import Field

from trainyard.base import StrictModel
from trainyard.config.field_types import Integer
from trainyard.config.training.models import DecoderConfig, ModelConfig
from trainyard.errors import Problem


class ParallelConfig(StrictModel):
    """Degrees and kinds of parallelism. The ranks that the others do not use are data parallel."""

    data: Literal["ddp", "fsdp", "hsdp"] = Field(
        "ddp",
        description="Data parallelism: each rank has all parameters (ddp), a shard of each (fsdp), or a shard of each "
        "in a group that has all of them (hsdp). With tensor and pipeline parallelism: those of its part of the "
        "layers.",
    )
    shard: Integer | None = Field(
        None, gt=0, description="Ranks of a shard group of hsdp; null: the data parallel ranks of one node."
    )
    reshard_after_forward: bool = Field(
        True,
        description="Free the gathered weights of a block after its forward pass (fsdp and hsdp without a pipeline): "
        "less memory, more communication.",
    )
    reduce_per_step: bool = Field(
        False,
        description="Reduce-scatter gradients once per step instead of once per micro-batch (fsdp and hsdp without a "
        "pipeline): less communication, but each rank has unsharded fp32 gradients, 4 bytes per parameter.",
    )
    context: Integer = Field(
        1,
        gt=0,
        description="Context parallel degree: ranks that share each sequence. With fsdp and hsdp they have "
        "different shards.",
    )
    tensor: Integer = Field(1, gt=0, description="Tensor parallel degree: ranks of one node that share the layers.")
    async_tensor: bool = Field(
        False,
        description="Asynchronous tensor parallelism: overlap its communication with its matrix products, part by "
        "part. Needs compiled blocks and NVIDIA GPUs.",
    )
    expert: Integer = Field(
        1,
        gt=0,
        description="Expert parallel degree (qwen3_moe with fsdp): ranks form groups of this size. Each rank of a "
        "group has an equal share of the experts, and they exchange the tokens. Divides the experts and the ranks.",
    )
    pipeline: Integer = Field(1, gt=0, description="Pipeline parallel degree: ranks with consecutive layers each.")
    schedule: Literal["1f1b", "gpipe", "interleaved_1f1b"] = Field(
        "1f1b",
        description="Pipeline schedule. With interleaved_1f1b each rank has several stages of layers: a smaller "
        "pipeline bubble, more communication.",
    )
    stages_per_rank: Integer | None = Field(None, gt=1, description="Stages of a rank with interleaved_1f1b; null: 2.")

    @property
    def ranks_per_sample(self) -> int:
        """Number of ranks that train on the same samples."""
        return self.context * self.tensor * self.pipeline

    @property
    def stage_count(self) -> int:
        """Number of pipeline stages on all ranks."""
        return self.pipeline * ((self.stages_per_rank or 2) if self.schedule == "interleaved_1f1b" else 1)

    @property
    def sharded(self) -> bool:
        """Whether fully_shard parallelizes the model: always, except for plain ddp."""
        return self.data != "ddp" or self.tensor * self.pipeline > 1


@dataclass(frozen=True)
class Layout:
    """Ranks along each dimension, outermost first: rank = ((p * replicate + r) * shard + s) * tensor + t.

    The ranks with parts of the same sequences, `context`, are consecutive in the dimensions replicate and shard.
    """

    pipeline: int
    replicate: int
    shard: int
    tensor: int
    accumulation: int  # micro-batches of a rank in a step
    context: int = 1

    @property
    def gradient_ranks(self) -> int:
        """Number of ranks whose gradients are averaged: they have other samples, or other parts of the sequences."""
        return self.replicate * self.shard

    @property
    def data(self) -> int:
        """Number of data parallel ranks: those with different samples."""
        return self.gradient_ranks // self.context

    @property
    def loss_ranks(self) -> int:
        """Number of ranks that compute a loss: those of the last pipeline stage."""
        return self.gradient_ranks * self.tensor

    def data_rank(self, rank: int) -> int:
        """Return the index of a rank among the data parallel ranks."""
        return rank // (self.tensor * self.context) % self.data

    def stage(self, rank: int) -> int:
        """Return the pipeline stage of a rank."""
        return rank // (self.tensor * self.gradient_ranks)

    def context_groups(self) -> list[list[int]]:
        """Return the ranks of each context parallel group."""
        step, world_size = self.tensor, self.pipeline * self.gradient_ranks * self.tensor
        starts = [first + t for first in range(0, world_size, step * self.context) for t in range(step)]
        return [list(range(start, start + step * self.context, step)) for start in starts]


def parallel_layout(parallel: ParallelConfig, batch: int, micro_batch: int, world_size: int, per_node: int) -> Layout:
    """Return the layout of a configuration without `parallel_problems`."""
    context, ranks = parallel.context, world_size // (parallel.tensor * parallel.pipeline)
    shard = {"ddp": 1, "fsdp": ranks, "hsdp": _shard_group(parallel, ranks, per_node)}[parallel.data]
    accumulation = batch // (micro_batch * (ranks // context))
    return Layout(parallel.pipeline, ranks // shard, shard, parallel.tensor, accumulation, context)


def _shard_group(parallel: ParallelConfig, ranks: int, per_node: int) -> int:
    return parallel.shard or min(ranks, max(1, per_node // parallel.tensor))


def parallel_problems(
    parallel: ParallelConfig, model: ModelConfig, batch: int, micro_batch: int, world_size: int, per_node: int
) -> Iterator[Problem]:
    """Yield why `world_size` ranks, `per_node` on each node, cannot run this model.

    `batch` and `micro_batch` are in samples. Keys are relative to the trainer's configuration.
    """
    yield from _schedule_problems(parallel)
    yield from _model_problems(parallel, model)
    used = parallel.ranks_per_sample
    degrees = {name: getattr(parallel, name) for name in ("tensor", "context", "pipeline")}
    product = " x ".join(f"{name} {degree}" for name, degree in degrees.items() if degree > 1)
    if world_size % used:
        key, value = max(degrees.items(), key=lambda item: item[1])
        reason = f"{product} does not divide {world_size} processes"
        yield Problem(
            f"parallel.{key}", value, reason, "Change it, or the number of processes", "processes_not_divisible"
        )
        return
    data = world_size // used
    ranks = data * parallel.context
    if parallel.tensor > 1 and per_node % parallel.tensor:
        reason = f"does not divide the {per_node} processes of a node, and tensor parallel ranks share a node"
        yield Problem(
            "parallel.tensor", parallel.tensor, reason, "Set it to a divisor", "tensor_parallel_not_a_divisor"
        )
    if not parallel.reshard_after_forward and (parallel.data == "ddp" or parallel.pipeline > 1):
        which = "parallel.data is ddp" if parallel.data == "ddp" else f"parallel.pipeline is {parallel.pipeline}"
        reason = f"{which}, which never frees gathered weights after a forward pass"
        yield Problem("parallel.reshard_after_forward", False, reason, "Remove it", "reshard_without_effect")
    if parallel.reduce_per_step and (parallel.data == "ddp" or parallel.pipeline > 1):
        which = "parallel.data is ddp" if parallel.data == "ddp" else f"parallel.pipeline is {parallel.pipeline}"
        reason = f"{which}, which always reduces gradients once per step"
        yield Problem("parallel.reduce_per_step", True, reason, "Remove it", "reduce_per_step_without_effect")
    if parallel.shard is not None and parallel.data != "hsdp":
        reason = f"parallel.data is {parallel.data}, and only hsdp has shard groups"
        yield Problem("parallel.shard", parallel.shard, reason, "Remove it, or set data: hsdp", "shard_without_hsdp")
    elif parallel.data == "hsdp" and ranks % (group := _shard_group(parallel, ranks, per_node)):
        reason = f"shard groups of {group} do not divide the {ranks} ranks (processes / (tensor x pipeline))"
        yield Problem("parallel.shard", parallel.shard, reason, "Set it to a divisor", "shard_not_a_divisor")
    elif parallel.data == "hsdp" and group % parallel.context:
        reason = f"shard groups of {group} are no multiple of context {parallel.context}"
        yield Problem("parallel.shard", parallel.shard, reason, "Set it to a multiple", "shard_not_a_multiple")
    if parallel.expert > 1 and ranks % parallel.expert:
        reason = f"does not divide the {ranks} ranks (processes / (tensor x pipeline))"
        yield Problem("parallel.expert", parallel.expert, reason, "Set it to a divisor", "expert_not_a_divisor")
    if batch % (micro_batch * data):
        reason = f"batch_size {batch} is not a multiple of micro_batch_size {micro_batch} x {data} processes"
        if used > 1:
            reason += f" (data parallel: {world_size} over {product})"
        fix = "Change batch_size, micro_batch_size or the number of processes"
        yield Problem("batch_size", batch, reason, fix, "batch_size_not_divisible")
    elif (micro_batches := batch // (micro_batch * data)) < parallel.pipeline:
        reason = f"{parallel.pipeline} stages need as many micro-batches, and a rank has {micro_batches} in a step"
        fix = "Increase batch_size, or reduce micro_batch_size"
        yield Problem("parallel.pipeline", parallel.pipeline, reason, fix, "too_few_micro_batches")
    elif parallel.stage_count > parallel.pipeline and micro_batches % (rounds := micro_batches // parallel.pipeline):
        reason = f"{micro_batches} micro-batches of a step do not divide into {rounds} rounds of equal size"
        fix = f"Change batch_size so that they are a multiple of {parallel.pipeline}"
        yield Problem("batch_size", batch, reason, fix, "uneven_rounds")


def _schedule_problems(parallel: ParallelConfig) -> Iterator[Problem]:
    if parallel.schedule != "1f1b" and parallel.pipeline == 1:
        reason = "is a schedule of several ranks, and parallel.pipeline is 1"
        fix = "Remove it, or set parallel.pipeline"
        yield Problem("parallel.schedule", parallel.schedule, reason, fix, "schedule_without_pipeline")
    if parallel.schedule != "interleaved_1f1b" and parallel.stages_per_rank is not None:
        reason = f"parallel.schedule is {parallel.schedule}, in which a rank has one stage"
        fix = "Remove it, or set schedule: interleaved_1f1b"
        yield Problem("parallel.stages_per_rank", parallel.stages_per_rank, reason, fix, "stages_without_interleaving")


def _model_problems(parallel: ParallelConfig, model: ModelConfig) -> Iterator[Problem]:
    if parallel.expert > 1:
        yield from _expert_problems(parallel, model)
    if not isinstance(model, DecoderConfig):
        for key in ("context", "tensor", "pipeline"):
            if (degree := getattr(parallel, key)) > 1:
                reason = f"only the built-in decoder supports it, and the model is {model.kind}"
                yield Problem(
                    f"parallel.{key}",
                    degree,
                    reason,
                    "Set it to 1, or use the decoder",
                    "parallelism_unsupported_by_model",
                )
        return
    length, multiple = model.sequence_length, parallel.context * lcm(2, parallel.tensor)
    if parallel.context > 1 and length % multiple:
        reason = f"needs a sequence_length that is a multiple of {multiple}, and it is {length}"
        fix = "Change it, or model.sequence_length"
        yield Problem("parallel.context", parallel.context, reason, fix, "context_parallel_not_a_divisor")
    if not model.has_shape:
        return
    if model.experts is not None:
        yield from _unsupported_with_experts(parallel)
        return
    if parallel.tensor > 1:
        sizes = ("kv_heads", "intermediate_size", "vocabulary", "sequence_length")
        uneven = [f"{name} {getattr(model, name)}" for name in sizes if getattr(model, name) % parallel.tensor]
        if uneven:
            reason = f"does not divide the model's {', '.join(uneven)}"
            yield Problem(
                "parallel.tensor",
                parallel.tensor,
                reason,
                "Set it to a divisor of all of them",
                "tensor_parallel_not_a_divisor",
            )
    if parallel.stage_count > model.layers:
        reason = f"the model has {model.layers} layers, and the schedule {parallel.stage_count} stages"
        yield Problem(
            "parallel.pipeline", parallel.pipeline, reason, "Use fewer stages than layers", "more_stages_than_layers"
        )
    if parallel.pipeline > 1 and model.tie_embeddings:
        reason = "tie_embeddings is true, and the first and the last stage would share a matrix"
        yield Problem(
            "parallel.pipeline", parallel.pipeline, reason, "Set tie_embeddings: false", "tied_embeddings_across_stages"
        )


def _unsupported_with_experts(parallel: ParallelConfig) -> Iterator[Problem]:
    for key, degree in (("tensor", parallel.tensor), ("pipeline", parallel.pipeline)):
        if degree > 1:
            reason = f"a model with experts does not support parallel.{key}"
            fix = "Set it to 1; parallel.data fsdp, expert and context also distribute the memory"
            yield Problem(f"parallel.{key}", degree, reason, fix, "parallelism_unsupported_by_experts")


def _expert_problems(parallel: ParallelConfig, model: ModelConfig) -> Iterator[Problem]:
    fix, code = "Set it to 1", "expert_parallelism_unsupported"
    if isinstance(model, DecoderConfig) and not model.has_shape:
        return
    experts = model.experts if isinstance(model, DecoderConfig) else None
    if experts is None:
        reason = "the model has no experts"
    elif parallel.data != "fsdp":
        reason, fix = f"parallel.data is {parallel.data}, and experts are distributed with fsdp", "Set data: fsdp"
    elif experts % parallel.expert:
        reason, fix, code = f"does not divide the {experts} experts", "Set it to a divisor", "expert_not_a_divisor"
    else:
        return
    yield Problem("parallel.expert", parallel.expert, reason, fix, code)
