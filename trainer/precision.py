"""The types that a forward and a backward pass are computed in. Weights and optimizer are fp32 throughout."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy

from trainyard.config.training import TrainerConfig

_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "float8": torch.bfloat16}


class LossScale:
    """fp16's small gradients would be zeros: the loss is multiplied before, and the gradients divided after.

    torch's GradScaler looks for infinities in the gradients of one rank, and ranks with different pieces or stages of a
    model would disagree. Here the norm over all of them tells. Growth and backoff are GradScaler's.
    """

    GROWTH_STEPS = 2000

    def __init__(self, *, enabled: bool) -> None:
        self.enabled = enabled
        self.state: dict[str, float] = {"value": 2.0**16, "good": 0} if enabled else {}  # what a checkpoint keeps

    @property
    def value(self) -> float:
        return self.state.get("value", 1.0)

    @property
    def may_skip(self) -> bool:
        """Whether gradients that are not finite may come of the scale alone."""
        return self.enabled and self.value > 1

    def scaled(self, loss: Tensor) -> Tensor:
        return loss * self.value if self.enabled else loss

    def update(self, *, finite: bool) -> None:
        """Half of it after a step whose gradients were not finite, twice after many that were."""
        if not self.enabled:
            return
        good = self.state["good"] + 1 if finite else 0
        if not finite:
            self.state["value"] /= 2
        elif good == self.GROWTH_STEPS:
            self.state["value"], good = self.value * 2, 0
        self.state["good"] = good


class Precision:
    """Sharded models cast their own weights as they gather them; any other runs under autocast."""

    def __init__(self, config: TrainerConfig, device: torch.device) -> None:
        self._type = _TYPES[config.precision]
        self._device, self._sharded = device, config.parallel.sharded
        self.loss_scale = LossScale(enabled=config.precision == "fp16")

    def policy(self, module: nn.Module, *, casts_inputs: bool = True) -> MixedPrecisionPolicy:
        """Of a module that is sharded as one. Gradients are summed over the ranks in fp32: sums in 16 bits lose.

        Batch normalisation stays in fp32, as under autocast: its running statistics are, and torch takes no mixture.
        Without `casts_inputs` each of the module's inputs keeps its type: for one whose inputs have the right ones.
        """
        if self._type == torch.float32:
            return MixedPrecisionPolicy()
        norms = (part for part in module.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm))
        kept = {id(parameter) for norm in norms for parameter in norm.parameters(recurse=False)}
        return MixedPrecisionPolicy(
            param_dtype=self._type,
            reduce_dtype=torch.float32,
            cast_forward_inputs=casts_inputs,
            param_dtype_override_fn=lambda parameter: parameter.dtype if id(parameter) in kept else None,
        )

    def autocast(self) -> AbstractContextManager[object]:
        if self._sharded or self._type == torch.float32:
            return nullcontext()
        return torch.autocast(self._device.type, self._type)


def to_float8(blocks: dict[str, nn.Module]) -> None:
    """Let the blocks' matrix products run in float8, by torchao: a scale a tensor, found as its values come."""
    from torchao.float8 import convert_to_float8_training

    for block in blocks.values():
        convert_to_float8_training(block)
