"""Export of a finished run: weights as safetensors, and int8 weights with their validation loss."""

import logging
from collections.abc import Callable, Iterable
from typing import Literal

import torch
import torch.distributed as dist
from torch import nn

from trainer.data import Data
from trainer.distributed import DistributedContext
from trainer.export.int8_export import export_int8
from trainer.export.model_config import build_empty_model, export_format
from trainer.export.model_files import copy_model_files
from trainer.export.safetensors_export import export_model, load_exported_weights
from trainer.models import Model
from trainer.models.loss import target_share
from trainer.models.pretrained import open_model_storage
from trainer.storage import Storage
from trainyard.config.training import TrainerConfig
from trainyard.config.training.models import LanguageModelConfig
from trainyard.models.metrics import Export

Exports = dict[Literal["safetensors", "int8"], Export]
_log = logging.getLogger(__name__)


def export(
    model: Model,
    config: TrainerConfig,
    distributed: DistributedContext,
    results: Storage,
    data: Data,
    validation_loss: float,
    evaluate: Callable[[nn.Module], float],
) -> Exports:
    """Export the model in the configured formats. Called on all ranks.

    Rank 0 alone quantizes the whole model to int8 on its device, and calls `evaluate` before and after, so that both
    losses are of the same samples. If that fails (a model too large for one GPU), a warning is logged and the int8
    weights are missing. Raises OSError if the storage is unavailable for minutes.
    """
    exports: Exports = {}
    if not config.checkpoint.export:
        return exports
    tokens = data.special_tokens
    format = export_format(config.model, tokens, config.checkpoint.export_dtype)
    group = distributed.checkpoint_group
    export_model(model.module, format.config, results, group, rename=format.rename, dtype=format.dtype)
    if distributed.rank == 0:
        source = config.model.path if isinstance(config.model, LanguageModelConfig) else None
        copy_model_files(
            results, "export/", data.storage, None if source is None else open_model_storage(source), tokens
        )
        size = sum(bytes_ for name, bytes_ in results.sizes("export").items() if name.endswith(".safetensors"))
        exports["safetensors"] = Export(uri=f"{results.uri}export/", bytes=size, validation_loss=validation_loss)
    if "int8" in config.checkpoint.export:
        if distributed.rank == 0:
            try:
                whole = build_empty_model(config.model, config.memory.loss_chunk_tokens)
                load_exported_weights(whole, results, rename=format.rename)
                report = export_int8(
                    whole.to(distributed.device),
                    format.int8_config(),
                    results,
                    evaluate=evaluate,
                    rename=format.rename,
                )
            except Exception as error:  # any error: training has succeeded, and the full weights are exported
                message = (str(error).strip() or "no message").splitlines()[0][:300]
                _log.warning("int8 weights not exported: %s: %s", type(error).__name__, message)
            else:
                assert report.loss is not None
                assert report.full_loss is not None
                uri = f"{results.uri}export/int8/"
                exports["int8"] = Export(uri=uri, bytes=report.bytes, validation_loss=report.loss)
                full = exports["safetensors"]
                exports["safetensors"] = full.model_copy(update={"validation_loss": report.full_loss})
        dist.barrier(group=group)  # its timeout is longer than that of training's groups
    return exports


@torch.no_grad()
def mean_loss_of_model(module: nn.Module, batches: Iterable[tuple[torch.Tensor, ...]], device: torch.device) -> float:
    """Return the mean validation loss of a whole model on one rank, computed in the type of its weights."""
    module.eval()
    total = torch.zeros(2, device=device)
    for batch in batches:
        inputs = tuple(tensor.to(device) for tensor in batch)
        total += torch.stack([module(*inputs).float(), target_share(inputs[1])])
    loss, share = total.tolist()
    return loss / share if share else 0.0
