"""What is trained: modules whose call with a micro-batch's tensors gives its mean loss."""

import torch

from trainer.models.built import Model
from trainer.models.decoder import Decoder, stage_layers
from trainer.telemetry.flops import decoder_flops
from trainyard.config.training import TrainerConfig
from trainyard.config.training.models import DecoderConfig, HuggingFaceConfig

__all__ = ["Model", "build"]


def build(config: TrainerConfig, stage: int = 0) -> Model:
    """The model on `meta`, without memory, where it has an `initialize`; else drawn, on the CPU.

    Raises InputError where a Hugging Face model can't be made of what the user names.
    """
    shape = config.model
    if isinstance(shape, DecoderConfig):
        layers = stage_layers(shape.layers, config.parallel.pipeline, stage)
        with torch.device("meta"):
            module = Decoder(shape, config.memory.loss_chunk, layers)
        blocks = {f"blocks.{number}": block for number, block in module.blocks.items()}
        table = 0 if shape.tie_embeddings else shape.vocabulary * shape.dim
        each = decoder_flops(shape.parameters, table, shape.layers, shape.dim, shape.sequence_length)
        return Model(
            module=module,
            blocks=blocks,
            initialize=module.initialize,
            vocabulary=shape.vocabulary,
            parameters=shape.parameters,
            flops=each * shape.sequence_length,
        )
    torch.manual_seed(config.seed)
    if isinstance(shape, HuggingFaceConfig):
        from trainer.models.hugging_face import language_model

        return language_model(shape, config.memory.loss_chunk)
    from trainer.models.images import classifier

    return classifier(shape)
