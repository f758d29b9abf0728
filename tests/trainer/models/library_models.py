"""Small models of transformers with random weights, as folders in the format of Hugging Face."""

from pathlib import Path
from typing import Any

import torch

SHAPE: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
# By name of a case: keys of config.json.
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "rope_theta": 500_000.0, "rope_scaling": LLAMA3_ROPE},
    "llama-tied": {"model_type": "llama", "tie_word_embeddings": True, "rms_norm_eps": 1e-5},
    "mistral": {"model_type": "mistral", "head_dim": 16, "sliding_window": None},
    "qwen2": {"model_type": "qwen2", "rope_theta": 1e6, "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", "rope_theta": 1e6, "head_dim": 8},
    "qwen3-moe": {
        **{"model_type": "qwen3_moe", "rope_theta": 1e6, "head_dim": 8, "norm_topk_prob": True},
        **{"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    },
}


def save_model(
    folder: Path, name: str, dtype: torch.dtype = torch.float32, file_bytes: str = "5GB", **changes: Any
) -> Any:
    """Write the model `name` to a folder and return it. All of its parameters are random: a lost one has an effect."""
    from transformers import AutoModelForCausalLM, GenerationConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    keys = {**SHAPE, **MODELS[name], **changes}
    config = CONFIG_MAPPING[keys["model_type"]].from_dict(keys)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder, max_shard_size=file_bytes)
    GenerationConfig(eos_token_id=[2, 5], temperature=0.6, do_sample=True).save_pretrained(folder)
    return model.eval()
