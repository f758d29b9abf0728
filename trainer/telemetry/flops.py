"""FLOPs of a model's training, and model FLOPs utilization (MFU): these FLOPs over the peak of the GPUs."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import nn

from trainyard.config.gpus import GpuModel, gpu_models

Precision = Literal["fp32", "bf16", "fp16", "float8", "mxfp8", "nvfp4"]


def decoder_flops(
    parameters: int,
    embedding: int,
    layers: int,
    width: int,
    length: int,
    *,
    causal: bool = True,
    trains_weights: bool = True,
) -> float:
    """Return the FLOPs of a transformer per token of training, forward and backward: 6 N + 12 L H Q T.

    Source: Chowdhery et al., PaLM, arXiv 2204.02311, appendix B. N is the number of parameters in matrix products: all
    except the embedding table, which is indexed (`embedding`; 0 if the output layer is the same matrix). L layers, H
    heads of width Q (H Q = `width`), T = `length` tokens. As in the paper, recomputation (activation checkpointing)
    does not count. PaLM counts attention over all T tokens; `causal` counts half, which is the part that causal
    attention computes, and results in the lower utilization. Without `trains_weights` (LoRA) the gradients of the
    weights, 2 N, are not computed; those of the adaptation are neglected.
    """
    return (6 if trains_weights else 4) * (parameters - embedding) + 12 * layers * width * length * (
        0.5 if causal else 1
    )


def language_model_flops(model: nn.Module, config: Any, length: int, *, causal: bool) -> float:
    """Return the FLOPs per token of a transformers language model, from its parameters and configuration.

    Raises AttributeError if the configuration has no number of layers or hidden size.
    """
    parameters = sum(parameter.numel() for parameter in model.parameters())
    indexed = {id(layer.weight): layer.weight.numel() for layer in model.modules() if isinstance(layer, nn.Embedding)}
    multiplied = {id(layer.weight) for layer in model.modules() if isinstance(layer, nn.Linear)}
    embedding = sum(count for key, count in indexed.items() if key not in multiplied)
    return decoder_flops(parameters, embedding, config.num_hidden_layers, config.hidden_size, length, causal=causal)


def counted_flops(model: nn.Module, forward: Callable[[], torch.Tensor]) -> int:
    """Return the FLOPs of one forward and backward pass, counted by torch at run time: for models without a formula.

    `forward` returns the loss. Gradients and buffers, such as those of batch normalization, are restored.
    """
    from torch.utils.flop_counter import FlopCounterMode

    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = None
    with FlopCounterMode(display=False) as counter:
        torch.autograd.backward(forward())
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
    for name, parameter in model.named_parameters():
        parameter.grad = gradients[name]
    return int(counter.get_total_flops())


def find_gpu_model(device_name: str) -> GpuModel | None:
    """Return the catalog's GPU model of a name from torch.cuda.get_device_name; None if the catalog has none.

    Such names are `NVIDIA H100 80GB HBM3` and `Tesla V100-SXM2-16GB`.
    """
    tokens = device_name.replace("-", " ").split()
    return next((gpu for gpu in gpu_models() if gpu.model in tokens), None)


def peak_flops(device: torch.device, precision: Precision) -> float | None:
    """Return the dense peak FLOP/s of one GPU; None on CPUs, in fp32, and for a GPU that the catalog does not have."""
    if device.type != "cuda" or precision == "fp32":
        return None
    gpu = find_gpu_model(torch.cuda.get_device_name(device))
    if gpu is None:
        return None
    tera = {
        "bf16": gpu.bf16_tflops,
        "fp16": gpu.fp16_tflops,
        "float8": gpu.fp8_tflops,
        "mxfp8": gpu.fp8_tflops,
        "nvfp4": gpu.fp4_tflops,
    }[precision]
    return None if tera is None else tera * 1e12


def utilization(flops: float, seconds: float, gpus: int, peak: float | None) -> float | None:
    """Return the model FLOPs utilization of a step of `flops` on `gpus` GPUs; None if their peak is unknown."""
    return None if peak is None else flops / (seconds * gpus * peak)
