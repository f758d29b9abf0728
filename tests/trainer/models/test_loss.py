"""Cross-entropy in chunks of rows."""

import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from trainer.export.int8_export import quantize_linear_layers
from trainer.models import loss as loss_module
from trainer.models.loss import next_token_loss, target_share
from trainyard.config.training.models import IGNORED


def samples(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    x, weight = torch.randn(3, 7, 16), torch.randn(50, 16)
    targets = torch.randint(0, 50, (3, 7))
    targets[0, :3] = IGNORED
    return x.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_(), targets


@pytest.mark.parametrize("chunk", [1, 4, 21, 100])
@pytest.mark.parametrize("biased", [False, True])
def test_loss_and_gradients_equal_those_of_all_logits(chunk: int, biased: bool) -> None:
    (x, weight, targets), (x_whole, weight_whole, _) = samples(), samples()
    bias, bias_whole = (torch.linspace(-1, 1, 50).requires_grad_() if biased else None for _ in range(2))
    loss = next_token_loss(x, weight, targets, chunk, bias=bias) / target_share(targets)
    whole = functional.cross_entropy(
        functional.linear(x_whole, weight_whole, bias_whole).flatten(0, 1), targets.flatten()
    )
    (2 * loss).backward()  # type: ignore[no-untyped-call]
    (2 * whole).backward()  # type: ignore[no-untyped-call]
    pairs = [(loss, whole), (x.grad, x_whole.grad), (weight.grad, weight_whole.grad)]
    if bias is not None and bias_whole is not None:
        pairs.append((bias.grad, bias_whole.grad))
    for actual, expected in pairs:
        torch.testing.assert_close(actual, expected)


def test_loss_of_bf16_inputs_is_fp32() -> None:
    x, weight, targets = samples(torch.bfloat16)
    loss = next_token_loss(x, weight, targets, 4)
    assert loss.dtype == torch.float32
    exact = functional.cross_entropy(functional.linear(x.float(), weight.float()).flatten(0, 1), targets.flatten())
    assert abs((loss / target_share(targets)).item() - exact.item()) < 0.02
    loss.backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert x.grad.dtype == torch.bfloat16


@torch.no_grad()
def test_quantized_weight_supports_chunks() -> None:
    x, _, targets = samples()
    head = torch.nn.Sequential(torch.nn.Linear(16, 50))
    quantize_linear_layers(head)
    weight, bias = head[0].weight, head[0].bias
    assert isinstance(weight, Tensor)
    assert isinstance(bias, Tensor)
    whole = functional.cross_entropy(head(x).flatten(0, 1), targets.flatten())
    for chunk in (4, 100, None):
        loss = next_token_loss(x, weight, targets, chunk, bias=bias)
        torch.testing.assert_close(loss / target_share(targets), whole)


def test_fp16_with_loss_scale_has_the_gradients_of_fp32() -> None:
    """With so many tokens and so large a vocabulary that gradients of the mean are below fp16's smallest number."""
    torch.manual_seed(0)
    tokens, vocabulary, scale = 2048, 16_000, 2.0**15
    x, weight = torch.randn(1, tokens, 8), 0.1 * torch.randn(vocabulary, 8)
    targets = torch.randint(0, 100, (1, tokens))  # gradients of other rows come from their small probabilities only
    half: list[Tensor] = []
    exact: list[Tensor] = []
    for dtype, gradients in ((torch.float16, half), (torch.float32, exact)):
        inputs = x.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_()
        (next_token_loss(*inputs, targets, 1024) * scale).backward()  # type: ignore[no-untyped-call]
        gradients.extend(tensor.grad.float() / scale for tensor in inputs if tensor.grad is not None)
    for actual, full in ((half[0], exact[0]), (half[1][:100], exact[1][:100]), (half[1][100:], exact[1][100:])):
        assert (actual - full).norm() < 0.01 * full.norm()


def test_gradients_of_many_chunks_are_summed_in_fp32() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(1, 4096, 8).bfloat16(), torch.randn(20, 8).bfloat16()
    targets = torch.randint(0, 20, (1, 4096))
    gradients = []
    for dtype, chunk in ((torch.bfloat16, 16), (torch.float32, 4096)):
        copy = weight.clone().to(dtype).requires_grad_()
        next_token_loss(x.to(dtype), copy, targets, chunk).backward()  # type: ignore[no-untyped-call]
        assert copy.grad is not None
        gradients.append(copy.grad.float())
    assert (gradients[0] - gradients[1]).norm() < 0.005 * gradients[1].norm()  # bf16 has a precision of 0.002


def test_no_targets_have_zero_loss_and_gradient() -> None:
    x, weight, targets = samples()
    loss = next_token_loss(x, weight, torch.full_like(targets, IGNORED), 4)
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == 0
    assert x.grad is not None
    assert not x.grad.any()


def test_frozen_weight_has_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    (x, weight, targets), (x_frozen, frozen, _) = samples(), samples()
    next_token_loss(x, weight, targets, 4).backward()  # type: ignore[no-untyped-call]
    products: list[object] = []
    monkeypatch.setattr(loss_module, "_add_product", lambda *values: products.append(values))
    next_token_loss(x_frozen, frozen.requires_grad_(False), targets, 4).backward()  # type: ignore[no-untyped-call]
    assert products == []
    torch.testing.assert_close(x_frozen.grad, x.grad, rtol=0, atol=0)


def test_evaluation_computes_no_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    products: list[object] = []
    monkeypatch.setattr(loss_module, "_add_product", lambda *values: products.append(values))
    x, weight, targets = samples()
    with torch.no_grad():
        next_token_loss(x, weight, targets, 4)
    assert products == []
    next_token_loss(x, weight, targets, 4)
    assert len(products) == 6


@pytest.mark.parametrize("compiled", [False, True])
def test_compilation_can_be_selected(monkeypatch: pytest.MonkeyPatch, compiled: bool) -> None:
    calls: list[str] = []

    def record(name: str) -> object:
        calls.append(name)
        return eager()

    eager = loss_module._eager
    monkeypatch.setattr(loss_module, "_compiled", lambda: record("compiled"))
    monkeypatch.setattr(loss_module, "_eager", lambda: record("eager"))
    next_token_loss(*samples(), 4, compiled=compiled)
    assert calls == ["compiled" if compiled else "eager"]


# The kernel's peak of this process: ru_maxrss includes the program that started it.
PEAK = """
import pathlib, re, torch
from trainer.models.loss import next_token_loss
torch.set_num_threads(1)
x = torch.randn(4, 512, 64, requires_grad=True)
weight, targets = torch.randn(32_000, 64, requires_grad=True), torch.randint(0, 32_000, (4, 512))
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1])
before = peak()
next_token_loss(x, weight, targets, CHUNK).backward()
print(peak() - before)
"""
# Freed memory is returned to the kernel at once: else malloc adapts this threshold, and the peak is random.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536"}


def test_logits_are_never_all_in_memory() -> None:
    def peak_kib(chunk: int | None) -> int:
        program = PEAK.replace("CHUNK", str(chunk))
        process = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, **MALLOC},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return int(process.stdout)

    whole = 4 * 512 * 32_000 * 4 // 1024
    assert peak_kib(64) < 0.25 * whole
    assert peak_kib(None) > 0.5 * whole  # above the peak of the imports
