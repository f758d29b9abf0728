"""Language models of the transformers library."""

from pathlib import Path
from typing import Any

import pytest
import torch

from trainer.models.hugging_face import LanguageModel, build_language_model, load_transformers_config
from trainer.models.loss import target_share
from trainyard.config.training.models import IGNORED, HuggingFaceConfig
from trainyard.errors import InputError

SMALL: dict[str, dict[str, Any]] = {
    "llama": {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 1},
    "gemma2": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
    },
    "mistral": {
        **{"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
        **{"num_key_value_heads": 2, "sliding_window": 4},
    },
    "mixtral": {
        **{"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
        **{"num_key_value_heads": 2, "num_local_experts": 4},
    },
    "opt": {
        **{
            "hidden_size": 32,
            "ffn_dim": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "word_embed_proj_dim": 32,
        }
    },
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4},
    "mamba": {"hidden_size": 32, "state_size": 4, "num_hidden_layers": 2},
    "modernbert": {
        **{"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
        **{"pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 1, "bos_token_id": 1, "eos_token_id": 1},
    },
    "bert": {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
}


def build(kind: str, **changes: Any) -> LanguageModel:
    config = {"model_type": kind, "vocab_size": 300, **SMALL[kind]}
    task = "masked" if "bert" in kind else "causal"
    model = build_language_model(
        HuggingFaceConfig(kind="hugging_face", task=task, config=config, sequence_length=16, **changes),
        loss_chunk_tokens=8,
    )
    assert isinstance(model.module, LanguageModel)
    assert len(model.blocks) == 2
    return model.module.eval()


@pytest.mark.parametrize("kind", ["llama", "gpt2", "mistral", "bert"])
def test_loss_of_documents_equals_that_of_each_alone(kind: str) -> None:
    """Also with a sliding window (Mistral). Positions of BERT are absolute: only the first document is equal."""
    model = build(kind)
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    tokens, targets = torch.randint(0, 300, (2, 16)), torch.randint(0, 300, (2, 16))
    first = targets.clone()
    first[:, 10:] = IGNORED
    documents = torch.tensor([0, 10, 16, 26, 32], dtype=torch.int32)
    packed = model(tokens, first, documents)
    torch.testing.assert_close(packed * 16, model(tokens[:, :10], targets[:, :10]) * 10)
    if kind != "bert":
        both = model(tokens, targets, documents)
        torch.testing.assert_close(both * 16 - packed * 16, model(tokens[:, 10:], targets[:, 10:]) * 6)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "mistral", "bert", "mixtral"])
def test_models_that_separate_documents(kind: str) -> None:
    assert build(kind).separates_documents()


@pytest.mark.parametrize("kind", ["bloom", "mamba", "modernbert", "opt"])
def test_models_that_do_not_separate_documents(kind: str) -> None:
    """Bloom has no positions, Mamba has a state, a mask turns off ModernBERT's window, and OPT masks padding only."""
    assert not build(kind).separates_documents()


@pytest.mark.parametrize(("kind", "linear"), [("llama", True), ("gpt2", True), ("gemma2", False), ("bert", True)])
def test_loss_equals_that_of_the_models_logits(kind: str, linear: bool) -> None:
    """Also with a bias and a layer before the linear layer (BERT), and with softcapped logits (Gemma)."""
    model = build(kind)
    assert model.has_linear_head is linear
    tokens, targets = torch.randint(0, 300, (2, 16)), torch.randint(0, 300, (2, 16))
    targets[0, :5] = -100
    for parameter in model.parameters():  # a missing bias would have no effect at zero
        torch.nn.init.normal_(parameter, std=0.1)
    logits = model.model(input_ids=tokens).logits
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss = model(tokens, targets) / target_share(targets)
    torch.testing.assert_close(loss, expected)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = [torch.autograd.grad(value, parameters, allow_unused=True) for value in (loss, expected)]
    for actual, reference in zip(*gradients, strict=True):
        assert (actual is None) == (reference is None)
        if actual is not None:
            torch.testing.assert_close(actual, reference, rtol=1e-4, atol=1e-6)


def test_bias_after_the_linear_layer_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bias is added to the logits and is initially zero."""
    from transformers import BertForMaskedLM

    forward = BertForMaskedLM.forward

    def biased(self: Any, **kwargs: Any) -> Any:
        output = forward(self, **kwargs)
        output.logits = output.logits + self.cls.predictions.another
        return output

    model: Any = build("bert").model
    model.cls.predictions.another = torch.nn.Parameter(torch.zeros(300))
    monkeypatch.setattr(BertForMaskedLM, "forward", biased)
    assert not LanguageModel(model, 8).has_linear_head


def test_weights_of_a_folder_are_loaded(tmp_path: Path) -> None:
    saved: Any = build("llama").model
    saved.save_pretrained(tmp_path)
    config = HuggingFaceConfig(kind="hugging_face", path=str(tmp_path), weights=True, sequence_length=16)
    loaded = build_language_model(config, None).module
    for name, tensor in saved.state_dict().items():
        assert torch.equal(loaded.state_dict()[f"model.{name}"], tensor), name


def test_bert_large_has_its_size() -> None:
    with torch.device("meta"):
        from transformers import AutoConfig, AutoModelForMaskedLM

        from trainyard.config.training.presets import HUGGING_FACE

        model = AutoModelForMaskedLM.from_config(AutoConfig.for_model(**HUGGING_FACE["bert-large"]["config"]))
    assert 330e6 < sum(parameter.numel() for parameter in model.parameters()) < 340e6


@pytest.mark.parametrize(
    ("config", "code", "key"),
    [
        ({"config": {"model_type": "no-such-model"}}, "model_config_rejected", "config.model.config"),
        (
            {"config": {"model_type": "gpt2", "n_head": 7, "n_embd": 32}},
            "model_config_rejected",
            "config.model.config",
        ),
        (
            {"config": {"model_type": "llama", "num_hidden_layer": 2}},
            "unknown_model_config_key",
            "config.model.config.num_hidden_layer",
        ),
        ({"preset": "gpt2", "config": {"n_layers": 2}}, "unknown_model_config_key", "config.model.config.n_layers"),
        ({"path": "/nowhere"}, "model_config_missing", "config.model.path"),
        ({"preset": "gpt2", "sequence_length": 2048}, "sequence_too_long", "config.model.sequence_length"),
    ],
)
def test_invalid_configuration_is_rejected(config: dict[str, Any], code: str, key: str) -> None:
    with pytest.raises(InputError) as caught:
        build_language_model(HuggingFaceConfig.model_validate({"kind": "hugging_face", **config}), None)
    (problem,) = caught.value.problems
    assert (problem.code, problem.key) == (code, key)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "llama", "rope_theta": 5e5, "torch_dtype": "float32", "attn_implementation": "sdpa"},
        {"model_type": "gpt2", "num_hidden_layers": 2, "hidden_size": 64},
        {
            "model_type": "bert",
            "gradient_checkpointing": False,
            "position_embedding_type": "absolute",
            "pad_token_id": 0,
        },
        {"model_type": "gpt2", "n_ctx": 1024, "task_specific_params": {}, "summary_type": "cls_index", "n_inner": None},
        {"model_type": "deberta-v2", "position_buckets": 256, "share_att_key": True, "norm_rel_ebd": "layer_norm"},
        {"model_type": "modernbert", "global_attn_every_n_layers": 2, "position_embedding_type": "absolute"},
        {"model_type": "qwen2", "use_mrope": False, "rope_theta": 1e6, "max_window_layers": 21},
        {"model_type": "opt", "activation_dropout": 0.0, "prefix": "</s>"},
        {"model_type": "gemma", "hidden_activation": "gelu_pytorch_tanh"},
        {"model_type": "albert", "gap_size": 0, "net_structure_type": 0, "num_memory_blocks": 0},
        {
            "model_type": "xlm-roberta",
            "output_past": True,
            "architectures": ["X"],
            "transformers_version": "4.17.0.dev0",
        },
        {"model_type": "bloom", "attention_softmax_in_fp32": True, "bias_dropout_fusion": True, "unk_token_id": 0},
    ],
)
def test_keys_of_published_configurations_are_accepted(config: dict[str, Any]) -> None:
    load_transformers_config(HuggingFaceConfig.model_validate({"kind": "hugging_face", "config": config}))
