"""Model presets. Source of the last four decoders: the published configurations of Llama 3.x."""

from typing import Any, Literal

DecoderPreset = Literal["1m", "10m", "124m", "350m", "1b", "3b", "8b", "70b"]
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
_SMALL: dict[str, Any] = {"vocabulary": 32_000, "sequence_length": 1024}
# Named by the number of parameters, embeddings included.
DECODERS: dict[str, dict[str, Any]] = {
    "1m": _decoder(128, 4, 4, 2, 512, vocabulary=256, sequence_length=128),
    "10m": _decoder(256, 4, 8, 4, 512, vocabulary=32_000, sequence_length=256, tie_embeddings=True),
    "124m": _decoder(768, 12, 12, 12, 2304, tie_embeddings=True, **_SMALL),
    "350m": _decoder(1024, 24, 16, 8, 3072, **_SMALL),
    "1b": _decoder(2048, 16, 32, 8, 8192, tie_embeddings=True, **_LLAMA),
    "3b": _decoder(3072, 28, 24, 8, 8192, tie_embeddings=True, **_LLAMA),
    "8b": _decoder(4096, 32, 32, 8, 14_336, **_LLAMA),
    "70b": _decoder(8192, 80, 64, 8, 28_672, **_LLAMA),
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
