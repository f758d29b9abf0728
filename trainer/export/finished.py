"""What a finished run leaves for others: weights as safetensors, and in 8 bits with what that costs in loss."""

from collections.abc import Callable, Iterable
from typing import Literal

import torch
import torch.distributed as dist
from torch import nn

from trainer.export.int8 import export_int8
from trainer.export.shape import config_of, empty, int8_config_of, prefix_of
from trainer.export.weights import export_model, fill_from
from trainer.models import Model
from trainer.ranks import Ranks
from trainer.storage import Storage
from trainyard.config.training import TrainerConfig
from trainyard.models.metrics import Export

Exports = dict[Literal["safetensors", "int8"], Export]


def export(
    model: Model,
    config: TrainerConfig,
    ranks: Ranks,
    results: Storage,
    validation_loss: float,
    evaluate: Callable[[nn.Module], float],
) -> Exports:
    """By all ranks together; rank 0 alone makes the 8 bits, of the whole model on its device, and `evaluate`s it before
    and after, so that both losses are of the same samples. Where that fails (a model too large for one GPU) it is told,
    and the 8 bits are missing.

    Raises OSError where the storage is away for minutes.
    """
    found: Exports = {}
    if not config.checkpoint.export:
        return found
    shape = config.model
    own, prefix = config_of(shape), prefix_of(shape)
    export_model(model.module, own, results, ranks.checkpoints, prefix=prefix)
    if ranks.rank == 0:
        size = sum(bytes_ for name, bytes_ in results.sizes("export").items() if name.endswith(".safetensors"))
        found["safetensors"] = Export(uri=f"{results.uri}export/", bytes=size, validation_loss=validation_loss)
    if "int8" in config.checkpoint.export:
        if ranks.rank == 0:
            try:
                whole = empty(shape, config.memory.loss_chunk)
                fill_from(whole, results, prefix=prefix)
                report = export_int8(
                    whole.to(ranks.device), int8_config_of(shape, own), results, evaluate=evaluate, prefix=prefix
                )
            except Exception as error:  # whatever it is, the run has ended well, and its weights are there
                words = (str(error).strip() or "no more is known").splitlines()[0][:300]
                print(f"warning: not exported in 8 bits: {type(error).__name__}: {words}", flush=True)
            else:
                assert report.loss is not None
                assert report.full_loss is not None
                uri = f"{results.uri}export/int8/"
                found["int8"] = Export(uri=uri, bytes=report.bytes, validation_loss=report.loss)
                full = found["safetensors"]
                found["safetensors"] = full.model_copy(update={"validation_loss": report.full_loss})
        dist.barrier(group=ranks.checkpoints)  # which waits longer than a collective of training
    return found


@torch.no_grad()
def loss_of(module: nn.Module, batches: Iterable[tuple[torch.Tensor, ...]], device: torch.device) -> float:
    """Mean held-out loss of a whole model by one rank, in the type that its weights have."""
    module.eval()
    losses = [float(module(*(each.to(device) for each in batch))) for batch in batches]
    return sum(losses) / len(losses)
