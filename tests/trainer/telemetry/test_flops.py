"""Model FLOPs compared with torch's counter, and peak FLOP/s by CUDA's device names."""

import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from tests.trainer.conftest import TINY, tiny
from trainer.models import build
from trainer.telemetry.flops import (
    counted_flops,
    decoder_flops,
    find_gpu_model,
    language_model_flops,
    peak_flops,
    utilization,
)
from trainyard.config.gpus import gpu_models
from trainyard.config.training.models import DecoderConfig


def test_formula_equals_that_of_palm() -> None:
    """For 8 B parameters and 8192 tokens: 6 N and attention, computed by hand."""
    model = DecoderConfig(preset="8b")
    embedding = model.vocabulary * model.dim
    expected = 6 * (8_030_261_248 - 525_336_576) + 12 * 32 * 4096 * 8192
    assert model.parameters == 8_030_261_248
    assert decoder_flops(model.parameters, embedding, 32, 4096, 8192, causal=False) == expected
    half = expected - 6 * 32 * 4096 * 8192
    assert decoder_flops(model.parameters, embedding, 32, 4096, 8192) == half


@pytest.mark.parametrize(("kind", "causal"), [("gpt2", True), ("bert", False), ("llama", True)])
def test_formula_matches_torchs_counter(kind: str, causal: bool) -> None:
    """Without a mask torch counts all of attention, as PaLM does."""
    shape = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 512}
    other_keys = {"n_embd": 128, "n_layer": 2, "n_head": 4} if kind == "gpt2" else {"intermediate_size": 512}
    config = transformers.AutoConfig.for_model(kind, **({"vocab_size": 512} if kind == "gpt2" else shape), **other_keys)
    auto_class = transformers.AutoModelForCausalLM if causal else transformers.AutoModelForMaskedLM
    model = auto_class.from_config(config, attn_implementation="eager")
    length = 64
    tokens = torch.randint(0, 512, (1, length))
    with FlopCounterMode(display=False) as counter:
        model(input_ids=tokens, labels=tokens).loss.backward()
    flops = language_model_flops(model, config, length, causal=causal)
    if causal:
        flops += 6 * 2 * 128 * length  # eager attention also computes the masked part
    assert flops == pytest.approx(counter.get_total_flops() / length, rel=0.02)


def test_flops_of_a_token_are_those_of_its_experts_and_router() -> None:
    """As a feed-forward layer with the width of two experts."""
    experts = {"architecture": "qwen3_moe", "experts": 8, "experts_per_token": 2, "expert_intermediate_size": 48}
    dense = {"architecture": "qwen3", "intermediate_size": 2 * 48}
    with_experts, without = (build(tiny(model=TINY["model"] | keys)).flops for keys in (experts, dense))
    assert with_experts is not None
    assert without is not None
    assert with_experts - without == 6 * 2 * 32 * 8 * 32  # layers, width, experts and tokens


def test_counting_restores_the_model() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 36, 5))
    images, labels = torch.randn(2, 3, 8, 8), torch.tensor([0, 1])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    flops = counted_flops(model, lambda: functional.cross_entropy(model(images), labels))
    convolution, linear = 2 * 2 * 36 * 8 * 27, 2 * 2 * 288 * 5
    assert flops == 2 * convolution + 3 * linear  # without the gradient of the images
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("Tesla T4", "T4"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GeForce RTX 4090", None),
        ("NVIDIA A10", None),
    ],
)
def test_gpu_model_of_a_cuda_device_name(name: str, model: str | None) -> None:
    gpu = find_gpu_model(name)
    assert (gpu.model if gpu else None) == model


def test_peak_flops_depend_on_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100 80GB HBM3")
    gpu = torch.device("cuda", 0)
    h100 = next(gpu for gpu in gpu_models() if gpu.model == "H100")
    assert h100.bf16_tflops is not None
    assert h100.fp8_tflops is not None
    assert peak_flops(gpu, "bf16") == peak_flops(gpu, "fp16") == h100.bf16_tflops * 1e12
    assert peak_flops(gpu, "float8") == h100.fp8_tflops * 1e12
    assert peak_flops(gpu, "nvfp4") is None
    assert peak_flops(gpu, "fp32") is None
    assert peak_flops(torch.device("cpu"), "bf16") is None
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100-SXM4-80GB")
    assert peak_flops(gpu, "float8") is None
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    assert peak_flops(gpu, "fp16") == 65e12
    assert peak_flops(gpu, "bf16") is None
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA B200")
    assert (peak_flops(gpu, "mxfp8"), peak_flops(gpu, "nvfp4")) == (4.5e15, 9e15)


def test_utilization_is_over_all_gpus() -> None:
    assert utilization(4e15, 2.0, 8, 1e15) == 0.25
    assert utilization(4e15, 2.0, 8, None) is None
