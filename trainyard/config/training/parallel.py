"""Parallelism of a model and its batch over the ranks of a job."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from trainyard.base import StrictModel
from trainyard.config.field_types import Integer
from trainyard.config.training.models import DecoderConfig, ModelConfig
from trainyard.errors import Problem


class ParallelConfig(StrictModel):
    """Degrees and kinds of parallelism. The ranks that `tensor` and `pipeline` do not use are data parallel."""

    data: Literal["ddp", "fsdp", "hsdp"] = Field(
        "ddp",
        description="Data parallelism: each rank has the whole model (ddp), a shard of it (fsdp), or a shard in its "
        "group and a replica in each group (hsdp).",
    )
    shard: Integer | None = Field(
        None, gt=0, description="Ranks of an hsdp shard group; none: the data parallel ranks of one node."
    )
    reshard_after_forward: bool = Field(
        True,
        description="Free the gathered weights of a block after its forward pass (fsdp, hsdp): less memory, more "
        "communication.",
    )
    reduce_per_step: bool = Field(
        False,
        description="Reduce gradients once per step instead of once per micro-batch (fsdp, hsdp): less communication, "
        "but each rank has 4 bytes for each parameter of the model.",
    )
    tensor: Integer = Field(1, gt=0, description="Tensor parallel degree: ranks that share each layer.")
    pipeline: Integer = Field(1, gt=0, description="Pipeline parallel degree: stages of consecutive layers.")
    schedule: Literal["1f1b", "gpipe"] = Field("1f1b", description="Pipeline schedule.")

    @property
    def sharded(self) -> bool:
        """Whether fully_shard parallelizes the model: always, except for plain ddp."""
        return self.data != "ddp" or self.tensor * self.pipeline > 1


@dataclass(frozen=True)
class Layout:
    """Ranks along each dimension, outermost first: rank = ((pipeline * replicate + r) * shard + s) * tensor + t."""

    pipeline: int
    replicate: int
    shard: int
    tensor: int
    accumulation: int  # micro-batches of a rank in a step

    @property
    def data(self) -> int:
        """Number of data parallel ranks."""
        return self.replicate * self.shard

    @property
    def loss_ranks(self) -> int:
        """Number of ranks that compute a loss: those of the last pipeline stage."""
        return self.data * self.tensor

    def data_rank(self, rank: int) -> int:
        """Return the index of a rank among the data parallel ranks."""
        return rank // self.tensor % self.data

    def stage(self, rank: int) -> int:
        """Return the pipeline stage of a rank."""
        return rank // (self.tensor * self.data)


def parallel_layout(parallel: ParallelConfig, batch: int, micro_batch: int, world_size: int, per_node: int) -> Layout:
    """Return the layout of a configuration without `parallel_problems`."""
    data = world_size // (parallel.tensor * parallel.pipeline)
    shard = {"ddp": 1, "fsdp": data, "hsdp": _shard_group(parallel, data, per_node)}[parallel.data]
    return Layout(parallel.pipeline, data // shard, shard, parallel.tensor, batch // (micro_batch * data))


def _shard_group(parallel: ParallelConfig, data: int, per_node: int) -> int:
    return parallel.shard or min(data, max(1, per_node // parallel.tensor))


def parallel_problems(
    parallel: ParallelConfig, model: ModelConfig, batch: int, micro_batch: int, world_size: int, per_node: int
) -> Iterator[Problem]:
    """Yield why `world_size` ranks, `per_node` on each node, cannot run this model.

    `batch` and `micro_batch` are in samples. Keys are relative to the trainer's configuration.
    """
    yield from _model_problems(parallel, model)
    used = parallel.tensor * parallel.pipeline
    if world_size % used:
        key, value = ("pipeline", parallel.pipeline) if parallel.pipeline > 1 else ("tensor", parallel.tensor)
        reason = f"tensor {parallel.tensor} x pipeline {parallel.pipeline} does not divide {world_size} processes"
        yield Problem(
            f"parallel.{key}", value, reason, "Change it, or the number of processes", "processes_not_divisible"
        )
        return
    data = world_size // used
    if parallel.tensor > 1 and per_node % parallel.tensor:
        reason = f"does not divide the {per_node} processes of a node, and tensor parallel ranks share a node"
        yield Problem(
            "parallel.tensor", parallel.tensor, reason, "Set it to a divisor", "tensor_parallel_not_a_divisor"
        )
    if parallel.reduce_per_step and (parallel.data == "ddp" or parallel.pipeline > 1):
        which = "parallel.data is ddp" if parallel.data == "ddp" else f"parallel.pipeline is {parallel.pipeline}"
        reason = f"{which}, which always reduces gradients once per step"
        yield Problem("parallel.reduce_per_step", True, reason, "Remove it", "reduce_per_step_without_effect")
    if parallel.shard is not None and parallel.data != "hsdp":
        reason = f"parallel.data is {parallel.data}, and only hsdp has shard groups"
        yield Problem("parallel.shard", parallel.shard, reason, "Remove it, or set data: hsdp", "shard_without_hsdp")
    elif parallel.data == "hsdp" and data % (group := _shard_group(parallel, data, per_node)):
        reason = f"shard groups of {group} do not divide the {data} data parallel processes"
        yield Problem("parallel.shard", parallel.shard, reason, "Set it to a divisor", "shard_not_a_divisor")
    if batch % (micro_batch * data):
        reason = f"batch_size {batch} is not a multiple of micro_batch_size {micro_batch} x {data} processes"
        if used > 1:
            reason += f" (data parallel: {world_size} over tensor {parallel.tensor} x pipeline {parallel.pipeline})"
        fix = "Change batch_size, micro_batch_size or the number of processes"
        yield Problem("batch_size", batch, reason, fix, "batch_size_not_divisible")
    elif (micro_batches := batch // (micro_batch * data)) < parallel.pipeline:
        reason = f"{parallel.pipeline} stages need as many micro-batches, and a rank has {micro_batches} in a step"
        fix = "Increase batch_size, or reduce micro_batch_size"
        yield Problem("parallel.pipeline", parallel.pipeline, reason, fix, "too_few_micro_batches")


def _model_problems(parallel: ParallelConfig, model: ModelConfig) -> Iterator[Problem]:
    if not isinstance(model, DecoderConfig):
        for key, degree in (("tensor", parallel.tensor), ("pipeline", parallel.pipeline)):
            if degree > 1:
                reason = f"only the built-in decoder supports it, and the model is {model.kind}"
                yield Problem(
                    f"parallel.{key}",
                    degree,
                    reason,
                    "Set it to 1, or use the decoder",
                    "parallelism_unsupported_by_model",
                )
        return
    if not model.has_shape:
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
    if parallel.pipeline > model.layers:
        reason = f"the model has {model.layers} layers"
        yield Problem(
            "parallel.pipeline", parallel.pipeline, reason, "Use fewer stages than layers", "more_stages_than_layers"
        )
    if parallel.pipeline > 1 and model.tie_embeddings:
        reason = "tie_embeddings is true, and the first and the last stage would share a matrix"
        yield Problem(
            "parallel.pipeline", parallel.pipeline, reason, "Set tie_embeddings: false", "tied_embeddings_across_stages"
        )
