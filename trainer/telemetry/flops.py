"""How much of the chips' peak a model makes use of: its own FLOPs, counted by formula, over what the chips could do."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import nn

from trainyard.config.gpus import Chip, chips

Precision = Literal["fp32", "bf16", "fp16", "float8"]


def decoder_flops(parameters: int, embedding: int, layers: int, dim: int, length: int, *, causal: bool = True) -> float:
    """FLOPs that a transformer needs for one token of training, forward and backward: 6 N + 12 L H Q T.

    Source: Chowdhery et al., PaLM, arXiv 2204.02311, appendix B. N are the parameters that multiply: all but the table
    of embeddings, which is looked up (`embedding`; 0 where the output layer is the same matrix). L layers, H heads of
    width Q (H Q = `dim`), T = `length` tokens. As there, what is computed again (activation checkpointing) does not
    count. PaLM counts attention over all T tokens; `causal` counts the half that a causal mask leaves, which is what
    our attention computes, and so gives the lower utilization.
    """
    return 6 * (parameters - embedding) + 12 * layers * dim * length * (0.5 if causal else 1)


def language_model_flops(model: nn.Module, config: Any, length: int, *, causal: bool) -> float:
    """Likewise of a language model of transformers: from its parameters and its configuration, FLOPs a token.

    Raises AttributeError where the configuration names neither layers nor width: there is no figure then.
    """
    parameters = sum(parameter.numel() for parameter in model.parameters())
    looked_up = {id(each.weight): each.weight.numel() for each in model.modules() if isinstance(each, nn.Embedding)}
    multiplied = {id(each.weight) for each in model.modules() if isinstance(each, nn.Linear)}
    embedding = sum(count for key, count in looked_up.items() if key not in multiplied)
    return decoder_flops(parameters, embedding, config.num_hidden_layers, config.hidden_size, length, causal=causal)


def counted_flops(model: nn.Module, forward: Callable[[], torch.Tensor]) -> int:
    """FLOPs of one forward and backward pass, counted by torch as they run: for models that have no formula.

    `forward` gives the loss. Gradients and the buffers that it changes, such as a batch norm's, are as before.
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


def chip_named(name: str) -> Chip | None:
    """The catalog's chip of torch.cuda.get_device_name, such as `NVIDIA H100 80GB HBM3` or `Tesla V100-SXM2-16GB`."""
    words = name.replace("-", " ").split()
    return next((chip for chip in chips() if chip.model in words), None)


def peak_flops(device: torch.device, precision: Precision) -> float | None:
    """FLOP/s that one chip reaches at best, dense; None on CPUs, in fp32, and of a chip that the catalog lacks."""
    if device.type != "cuda" or precision == "fp32":
        return None
    chip = chip_named(torch.cuda.get_device_name(device))
    if chip is None:
        return None
    tera = {"bf16": chip.bf16_tflops, "fp16": chip.fp16_tflops, "float8": chip.fp8_tflops}[precision]
    return None if tera is None else tera * 1e12


def utilization(flops: float, seconds: float, chips: int, peak: float | None) -> float | None:
    """Model FLOPs utilization of a step that needs `flops` over all its chips; None where their peak is not known."""
    return None if peak is None else flops / (seconds * chips * peak)
