"""Flags, metrics and weight update of one training step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.parallelism.gradients import scale_gradients
from trainer.telemetry.timing import StepTimes


@dataclass(frozen=True, kw_only=True)
class StepFlags:
    """Requests and due saves of all ranks, which act on them after the same step."""

    is_termination_requested: bool
    is_save_requested: bool
    is_save_due: bool
    is_save_retried: bool  # on any rank
    is_copy_due: bool  # in host memory
    is_copying: bool  # on any rank

    def all_reduce(self, group: dist.ProcessGroup) -> "StepFlags":
        """Return for each flag whether any rank has it. `group`: all ranks, on the CPU: the GPU continues meanwhile."""
        values = torch.tensor(astuple(self), dtype=torch.float32)
        dist.all_reduce(values, group=group)
        return StepFlags(**{each.name: value > 0 for each, value in zip(fields(self), values.tolist(), strict=True)})


@dataclass(frozen=True, kw_only=True)
class StepOutcome:
    """The result of a step. Evaluation, metrics and checkpoint of the step may follow."""

    step: int
    consumed: int  # samples, of all steps
    flags: StepFlags
    loss: float
    gradient_norm: float | None  # None if it is not finite
    learning_rate: float
    loss_scale: float | None
    step_seconds: float
    phase_seconds: Mapping[str, float]
    expert_load_imbalance: float | None = None  # None without experts


@dataclass(frozen=True, kw_only=True)
class StartedStep:
    """A step that the device may not have completed. `read_metrics` returns mean loss and norm of the gradients.

    With experts a third figure is their `expert_load_imbalance`.
    """

    step: int
    consumed: int
    flags: StepFlags
    learning_rate: float
    read_metrics: Callable[[], list[float]]
    read_times: Callable[[], StepTimes]


def copy_to_host(values: Tensor) -> Callable[[], list[float]]:
    """Copy a tensor to the host. Returns a function that waits for the copy only, not for later work of the device."""
    if values.device.type != "cuda":
        copied = values.tolist()
        return lambda: copied
    host = torch.empty_like(values, device="cpu", pin_memory=True)
    host.copy_(values, non_blocking=True)
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()

    def read() -> list[float]:
        event.synchronize()
        numbers: list[float] = host.tolist()
        return numbers

    return read


def mean_over_ranks(loss: Tensor, ranks: int) -> tuple[Tensor, Tensor]:
    """Return the mean loss of all targets that have one, and their share of all targets.

    loss: (2,), the result of `ForwardBackward`, which is changed. `ranks`: number of ranks that compute a loss; the
    others have 0.
    """
    dist.all_reduce(loss)
    mean, share = loss / ranks
    share = share.clamp(min=torch.finfo(share.dtype).tiny)  # without a target the loss is 0
    return mean / share, share


def update_weights(
    optimizer: torch.optim.Optimizer,
    parameters: Sequence[nn.Parameter],
    loss: Tensor,
    norm: Tensor,
    *,
    clip_norm: float,
    scale: Tensor | float,
) -> None:
    """Clip the gradients and update the weights; unchanged if loss or norm is not finite. Does not wait for the device.

    loss, norm: scalars. `scale`: factor of the gradients that `norm` does not have. The optimizer skips the step as for
    torch's GradScaler.
    """
    is_finite = loss.isfinite() & norm.isfinite()
    clipping = (clip_norm / (norm + 1e-6)).clamp(max=1.0)
    scale_gradients(parameters, clipping / scale)
    optimizer.found_inf = (~is_finite).float()  # type: ignore[attr-defined]
    optimizer.step()
