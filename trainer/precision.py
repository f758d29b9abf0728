"""Mixed precision of the forward and backward passes. Weights are fp32, except frozen ones of LoRA."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy

from trainyard.config.training import TrainerConfig
from trainyard.config.training.low_precision import LOW_PRECISIONS

_TYPES = {"fp32": torch.float32, "fp16": torch.float16, **dict.fromkeys(("bf16", *LOW_PRECISIONS), torch.bfloat16)}


class LossScale:
    """Loss scaling for fp16: the loss is multiplied and the gradients divided, so that small gradients are not 0.

    torch's GradScaler checks the gradients of one rank for infinities; ranks with different shards or stages of a model
    could decide differently. Here the norm over all ranks decides. Growth and backoff are those of GradScaler.
    """

    GROWTH_STEPS = 2000

    def __init__(self, *, enabled: bool) -> None:
        self.enabled = enabled
        self.state: dict[str, float] = {"value": 2.0**16, "good": 0} if enabled else {}  # saved in checkpoints

    @property
    def value(self) -> float:
        """The factor on the loss; 1 if disabled."""
        return self.state.get("value", 1.0)

    @property
    def can_skip_step(self) -> bool:
        """Whether the loss scale alone may have made gradients infinite, so that the step can be skipped."""
        return self.enabled and self.value > 1

    def scale_loss(self, loss: Tensor) -> Tensor:
        """Return the loss multiplied by the scale."""
        return loss * self.value if self.enabled else loss

    def update(self, *, finite: bool) -> None:
        """Halve the scale after a step with infinite gradients; double it after GROWTH_STEPS steps without."""
        if not self.enabled:
            return
        good = self.state["good"] + 1 if finite else 0
        if not finite:
            self.state["value"] /= 2
        elif good == self.GROWTH_STEPS:
            self.state["value"], good = self.value * 2, 0
        self.state["good"] = good


class Precision:
    """Mixed precision by FSDP's policy for sharded models, and by autocast for others."""

    def __init__(self, config: TrainerConfig, device: torch.device) -> None:
        self.type = _TYPES[config.precision]  # of activations
        self._device, self._sharded = device, config.parallel.sharded
        self.loss_scale = LossScale(enabled=config.precision == "fp16")

    def policy(self, modules: nn.Module | list[nn.Module], *, cast_inputs: bool = True) -> MixedPrecisionPolicy:
        """Return FSDP's policy for one sharded module, or several as one unit.

        Gradients are summed over ranks in fp32, since 16-bit sums lose precision. Batch normalization remains in fp32,
        as under autocast: its running statistics are fp32, and torch accepts no mixture. `cast_inputs`: cast the
        module's inputs; False for a module whose inputs already have the correct types.
        """
        if self.type == torch.float32:
            return MixedPrecisionPolicy()
        unit = nn.ModuleList(modules if isinstance(modules, list) else [modules])
        norms = (part for part in unit.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm))
        fp32 = {id(parameter) for norm in norms for parameter in norm.parameters(recurse=False)}
        return MixedPrecisionPolicy(
            param_dtype=self.type,
            reduce_dtype=torch.float32,
            cast_forward_inputs=cast_inputs,
            param_dtype_override_fn=lambda parameter: parameter.dtype if id(parameter) in fp32 else None,
        )

    def autocast(self) -> AbstractContextManager[object]:
        """Return the autocast context of a forward pass; without effect for sharded models and fp32."""
        if self._sharded or self.type == torch.float32:
            return nullcontext()
        return torch.autocast(self._device.type, self.type)
