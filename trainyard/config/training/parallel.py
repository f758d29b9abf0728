"""How a model and its batch are spread over the ranks of a job."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from trainyard.base import Contract, Problem
from trainyard.config.numbers import Whole
from trainyard.config.training.models import DecoderConfig, ModelConfig


class ParallelConfig(Contract):
    """What is copied and what is split. Ranks that neither `tensor` nor `pipeline` takes share the batch."""

    data: Literal["ddp", "fsdp", "hsdp"] = Field(
        "ddp",
        description="Of the ranks that share the batch, each has the whole model (ddp), a piece of it (fsdp), or a "
        "piece within its group of ranks and a copy in each group (hsdp).",
    )
    shard: Whole | None = Field(
        None, gt=0, description="Ranks in a group of hsdp; none: those of one node that share the batch."
    )
    reshard_after_forward: bool = Field(
        True,
        description="Free a layer's gathered weights after its forward pass (fsdp, hsdp): less memory, more traffic.",
    )
    tensor: Whole = Field(1, gt=0, description="Ranks over which each layer's matrices and activations are split.")
    pipeline: Whole = Field(1, gt=0, description="Stages, one after the other, into which the layers are split.")
    schedule: Literal["1f1b", "gpipe"] = Field("1f1b", description="Order of a pipeline's micro-batches.")

    @property
    def sharded(self) -> bool:
        """Whether fully_shard is what spreads the model: always, save for plain copies of a whole model."""
        return self.data != "ddp" or self.tensor * self.pipeline > 1


@dataclass(frozen=True)
class Layout:
    """Ranks along each dimension, outermost first: rank = ((pipeline * replicate + r) * shard + s) * tensor + t."""

    pipeline: int
    replicate: int
    shard: int
    tensor: int
    accumulation: int  # micro-batches of one rank in a step

    @property
    def data(self) -> int:
        """Ranks that share the batch."""
        return self.replicate * self.shard

    @property
    def loss_ranks(self) -> int:
        """Ranks that know the loss of their micro-batches: those of a pipeline's last stage."""
        return self.data * self.tensor

    def data_rank(self, rank: int) -> int:
        """Where a rank stands among those that share the batch."""
        return rank // self.tensor % self.data

    def stage(self, rank: int) -> int:
        """Its stage in the pipeline."""
        return rank // (self.tensor * self.data)


def layout(parallel: ParallelConfig, batch: int, micro_batch: int, world_size: int, per_node: int) -> Layout:
    """Of a configuration in which `misfits` finds nothing."""
    data = world_size // (parallel.tensor * parallel.pipeline)
    shard = {"ddp": 1, "fsdp": data, "hsdp": _group(parallel, data, per_node)}[parallel.data]
    return Layout(parallel.pipeline, data // shard, shard, parallel.tensor, batch // (micro_batch * data))


def _group(parallel: ParallelConfig, data: int, per_node: int) -> int:
    return parallel.shard or min(data, max(1, per_node // parallel.tensor))


def misfits(
    parallel: ParallelConfig, model: ModelConfig, batch: int, micro_batch: int, world_size: int, per_node: int
) -> Iterator[Problem]:
    """What of it can't be on so many ranks, so many of them on a node, with this model. Keys as under the trainer's."""
    yield from _of_model(parallel, model)
    taken = parallel.tensor * parallel.pipeline
    if world_size % taken:
        key, value = ("pipeline", parallel.pipeline) if parallel.pipeline > 1 else ("tensor", parallel.tensor)
        why = f"tensor {parallel.tensor} x pipeline {parallel.pipeline} does not divide {world_size} processes"
        yield Problem(key=f"parallel.{key}", value=value, why=why, fix="Change it, or the number of processes")
        return
    data = world_size // taken
    if parallel.tensor > 1 and per_node % parallel.tensor:
        why = f"a node has {per_node} processes, and each tensor's pieces belong on one node"
        yield Problem(key="parallel.tensor", value=parallel.tensor, why=why, fix="Take a divisor of that number")
    if parallel.shard is not None and parallel.data != "hsdp":
        why = f"data is {parallel.data}, and only hsdp has groups"
        yield Problem(key="parallel.shard", value=parallel.shard, why=why, fix="Leave it out, or set data: hsdp")
    elif parallel.data == "hsdp" and data % (group := _group(parallel, data, per_node)):
        why = f"groups of {group} do not divide the {data} processes that share the batch"
        yield Problem(key="parallel.shard", value=parallel.shard, why=why, fix="Take a divisor of that number")
    if batch % (micro_batch * data):
        why = f"batch_size {batch} is not a multiple of micro_batch_size {micro_batch} x {data} processes"
        if taken > 1:
            why += f" that share the batch ({world_size} over tensor {parallel.tensor} x pipeline {parallel.pipeline})"
        fix = "Change batch_size, micro_batch_size or the number of processes"
        yield Problem(key="batch_size", value=batch, why=why, fix=fix)
    elif (own := batch // (micro_batch * data)) < parallel.pipeline:
        why = f"its {parallel.pipeline} stages need as many micro-batches, and a rank has {own} in a step"
        fix = "Raise batch_size, or lower micro_batch_size"
        yield Problem(key="parallel.pipeline", value=parallel.pipeline, why=why, fix=fix)


def _of_model(parallel: ParallelConfig, model: ModelConfig) -> Iterator[Problem]:
    if not isinstance(model, DecoderConfig):
        for key, ways in (("tensor", parallel.tensor), ("pipeline", parallel.pipeline)):
            if ways > 1:
                why = f"only the built-in decoder is split so, and the model is {model.kind}"
                yield Problem(key=f"parallel.{key}", value=ways, why=why, fix="Take data: fsdp, or the decoder")
        return
    if parallel.tensor > 1:
        parts = ("kv_heads", "hidden", "vocabulary", "sequence_length")
        uneven = [f"{name} {getattr(model, name)}" for name in parts if getattr(model, name) % parallel.tensor]
        if uneven:
            why = f"does not divide the model's {', '.join(uneven)}"
            yield Problem(key="parallel.tensor", value=parallel.tensor, why=why, fix="Take one that divides them all")
    if parallel.pipeline > model.layers:
        why = f"the model has {model.layers} layers"
        yield Problem(key="parallel.pipeline", value=parallel.pipeline, why=why, fix="Take fewer stages than layers")
    if parallel.pipeline > 1 and model.tie_embeddings:
        why = "tie_embeddings is true, and the first and the last stage would need the same matrix"
        yield Problem(key="parallel.pipeline", value=parallel.pipeline, why=why, fix="Set tie_embeddings: false")
