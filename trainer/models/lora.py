"""Low-rank adaptation (LoRA) of the decoder's linear layers: Hu et al., arXiv 2106.09685.

A layer computes W x + (alpha / rank) B A x. W is frozen; A (rank, inputs) and B (outputs, rank) are trained. The names
lora_A and lora_B are those of the library peft.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.models.experts import Experts
from trainyard.config.training.config import LoraConfig


class LoraLinear(nn.Linear):
    """A linear layer with frozen weights and trained low-rank matrices."""

    def __init__(self, base: nn.Linear, config: LoraConfig) -> None:
        super().__init__(base.in_features, base.out_features, bias=base.bias is not None, device="meta")
        self.lora_A = nn.Linear(base.in_features, config.rank, bias=False, device="meta")
        self.lora_B = nn.Linear(config.rank, base.out_features, bias=False, device="meta")
        self.scaling = config.alpha / config.rank
        self._dropout = config.dropout

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output."""
        adapted = self.lora_B(self.lora_A(functional.dropout(x, self._dropout, self.training)))
        output: Tensor = super().forward(x) + self.scaling * adapted
        return output


def add_lora(model: nn.Module, config: LoraConfig, frozen_type: torch.dtype) -> None:
    """Replace the target layers, and freeze all other parameters. The model is on the meta device, and remains there.

    `frozen_type`: type in which the frozen matrices of linear layers and experts are stored.
    """
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if name in config.targets and isinstance(child, nn.Linear):
                setattr(parent, name, LoraLinear(child, config))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(is_adapter(name))
    for module in model.modules():
        if isinstance(module, nn.Linear | Experts):
            for key, weight in module.named_parameters(recurse=False):
                if key != "bias" and not weight.requires_grad:
                    setattr(module, key, nn.Parameter(weight.to(frozen_type), requires_grad=False))


def is_adapter(name: str) -> bool:
    """Whether a parameter is one of the low-rank matrices."""
    return ".lora_A." in name or ".lora_B." in name


def initialize_adapter(name: str, layer: nn.Linear) -> None:
    """Initialize a low-rank matrix: A as torch initializes a linear layer, B with 0, so that the model is unchanged."""
    if name.endswith(".lora_B"):
        nn.init.zeros_(layer.weight)
    else:
        nn.init.kaiming_uniform_(layer.weight, a=math.sqrt(5))


def merged_weight(weight: Tensor, a: Tensor, b: Tensor, scaling: float) -> Tensor:
    """Return the weight, fp32, of a linear layer that computes the same without adaptation."""
    return weight.float() + scaling * (b.float() @ a.float())


def lora_layers(model: nn.Module) -> dict[str, LoraLinear]:
    """Return the adapted layers by the name of their weight."""
    return {f"{name}.weight": module for name, module in model.named_modules() if isinstance(module, LoraLinear)}
