"""Model presets. Sources: the published configurations of Llama 3.x (1b to 70b) and of Qwen3-30B-A3B."""

from typing import Any, Literal

DecoderPreset = Literal["1m", "10m", "124m", "350m", "1b", "3b", "8b", "70b", "174m-a42m", "30b-a3b"]
HuggingFacePreset = Literal["bert-base", "bert-large", "gpt2"]


def _decoder(dim: int, layers: int, heads: int, kv_heads: int, intermediate_size: int, **more: Any) -> dict[str, Any]:
    return {
        "dim": dim,
        "layers": layers,
        "heads": heads,
        "kv_heads": kv_heads,
        "intermediate_size": intermediate_size,
        **more,
    }


_LLAMA: dict[str, Any] = {"vocabulary": 128_256, "sequence_length": 8192, "rope_theta": 500_000.0}
_QWEN: dict[str, Any] = {"vocabulary": 151_936, "sequence_length": 8192, "rope_theta": 1_000_000.0, "norm_eps": 1e-6}
_SMALL: dict[str, Any] = {"vocabulary": 32_000, "sequence_length": 1024}


def _experts(experts: int, experts_per_token: int, expert_intermediate_size: int) -> dict[str, Any]:
    sizes = {
        "experts": experts,
        "experts_per_token": experts_per_token,
        "expert_intermediate_size": expert_intermediate_size,
    }
    return {"architecture": "qwen3_moe", **sizes}


# Named by the number of parameters, embeddings included; -aN: those that compute one token.
DECODERS: dict[str, dict[str, Any]] = {
    "1m": _decoder(128, 4, 4, 2, 512, vocabulary=256, sequence_length=128),
    "10m": _decoder(256, 4, 8, 4, 512, vocabulary=32_000, sequence_length=256, tie_embeddings=True),
    "124m": _decoder(768, 12, 12, 12, 2304, tie_embeddings=True, **_SMALL),
    "350m": _decoder(1024, 24, 16, 8, 3072, **_SMALL),
    "1b": _decoder(2048, 16, 32, 8, 8192, tie_embeddings=True, **_LLAMA),
    "3b": _decoder(3072, 28, 24, 8, 8192, tie_embeddings=True, **_LLAMA),
    "8b": _decoder(4096, 32, 32, 8, 14_336, **_LLAMA),
    "70b": _decoder(8192, 80, 64, 8, 28_672, **_LLAMA),
    "174m-a42m": _decoder(512, 8, 8, 4, 1536, tie_embeddings=True, **_experts(16, 2, 768), **_SMALL),
    "30b-a3b": _decoder(2048, 48, 32, 4, 6144, head_dim=128, **_experts(128, 8, 768), **_QWEN),
}
# Differences from the defaults of transformers. Sources: the tables of the BERT and GPT-2 papers.
HUGGING_FACE: dict[str, dict[str, Any]] = {
    "bert-base": {"task": "masked", "config": {"model_type": "bert"}},
    "bert-large": {
        "task": "masked",
        "config": {
            "model_type": "bert",
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "intermediate_size": 4096,
        },
    },
    "gpt2": {"task": "causal", "config": {"model_type": "gpt2"}},
}
