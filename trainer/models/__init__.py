"""Models: modules that return the loss of a micro-batch."""

import torch

from trainer.models.decoder import Decoder, DecoderStages, stage_layers
from trainer.models.lora import add_lora
from trainer.models.model import Model
from trainer.models.registry import build_custom_model
from trainer.telemetry.flops import decoder_flops
from trainyard.config.training import TrainerConfig
from trainyard.config.training.models import CustomModelConfig, DecoderConfig, HuggingFaceConfig

__all__ = ["Model", "build"]


def build(config: TrainerConfig, stage: int = 0) -> Model:
    """Build the configured model, or the pipeline stages of a rank, whose first is `stage`.

    A model with an `initialize` function is on the `meta` device; others are initialized on the CPU. Raises InputError
    if a library's or the user's model cannot be created.
    """
    model_config = config.model
    if isinstance(model_config, DecoderConfig):
        return _build_decoder(config, model_config, stage)
    torch.manual_seed(config.seed)
    if isinstance(model_config, HuggingFaceConfig):
        from trainer.models.hugging_face import build_language_model

        return build_language_model(model_config, config.memory.loss_chunk_tokens, compiles_loss=config.memory.compile)
    if isinstance(model_config, CustomModelConfig):
        return build_custom_model(model_config)
    from trainer.models.images import build_classifier

    return build_classifier(model_config, sharded=config.parallel.sharded)


def _build_decoder(config: TrainerConfig, model_config: DecoderConfig, stage: int) -> Model:
    ranks, count = config.parallel.pipeline, config.parallel.stage_count
    chunk, compiles = config.memory.loss_chunk_tokens, config.memory.compile
    with torch.device("meta"):
        stages = [
            Decoder(model_config, chunk, stage_layers(model_config.layers, count, number), compiles_loss=compiles)
            for number in range(stage, count, ranks)
        ]
    module = stages[0] if len(stages) == 1 else DecoderStages(stages)
    if config.lora is not None:
        add_lora(module, config.lora, torch.bfloat16 if config.precision == "bf16" else torch.float32)
    embedding = 0 if model_config.tie_embeddings else model_config.vocabulary * model_config.dim
    width = model_config.heads * model_config.head_size
    sizes = model_config.active_parameters, embedding, model_config.layers, width, model_config.sequence_length
    token_flops = decoder_flops(*sizes, trains_weights=config.lora is None)
    return Model(
        module=module,
        blocks={f"layers.{number}": block for number, block in module.layers.items()},
        initialize=stages[0].initialize,
        pretrained=model_config.path if model_config.weights else None,
        vocabulary=model_config.vocabulary,
        parameters=model_config.parameters,
        flops=token_flops * model_config.sequence_length,
    )
