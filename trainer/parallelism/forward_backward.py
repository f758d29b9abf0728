"""Forward and backward passes of a step: gradient accumulation over micro-batches, or a pipeline schedule."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle
from torch.nn.parallel import DistributedDataParallel

from trainer.distributed import DistributedContext
from trainer.models.decoder import Decoder, stages_of
from trainer.models.loss import target_share
from trainer.parallelism.gradient_wait import GradientWait
from trainer.parallelism.gradients import require_gradients
from trainer.precision import Precision
from trainer.telemetry.timing import StepTimer
from trainyard.config.training import TrainerConfig
from trainyard.config.training.models import DecoderConfig

Batch = Sequence[Tensor]
_Schedule = PipelineScheduleSingle | PipelineScheduleMulti


class ForwardBackward(ABC):
    """Forward and backward passes over the micro-batches of a step.

    Results are (2,): the loss and the share of targets that have one (`next_token_loss`, `target_share`), means over
    the micro-batches, detached. With pipeline parallelism only the last stage has them; other stages return 0.
    """

    measures_waiting = False  # whether `compute_gradients` measures the time that this rank waits for other ranks
    # With experts (layers, experts): the mean shares of the last step's micro-batches on this rank, see `Decoder`.
    expert_shares: Tensor | None = None

    @abstractmethod
    def compute_gradients(self, batches: Iterator[Batch], timer: StepTimer) -> Tensor:
        """Run one step's micro-batches and return their loss and share.

        Gradients are those of the mean of this loss over all data-parallel ranks.
        """

    def warm_up(self, batch: Batch) -> None:
        """Run one-time initialization, so that the first step after a resume has the same result as without it."""
        return

    @abstractmethod
    def compute_loss(self, batches: Iterator[Batch], count: int) -> Tensor:
        """Return loss and share of `count` micro-batches, without gradients."""

    def close(self) -> None:
        """Release what the passes have added to the module."""
        return


class AccumulatedForwardBackward(ForwardBackward):
    """Gradient accumulation: micro-batches run one after the other.

    DistributedDataParallel all-reduces gradients after the last micro-batch. FSDP reduce-scatters those of each
    micro-batch, so that a rank has the sums of its shards only; HSDP all-reduces them after the last.
    `reduces_per_step`: FSDP accumulates unsharded gradients on each rank, and reduce-scatters them after the last.
    """

    def __init__(
        self, module: nn.Module, distributed: DistributedContext, precision: Precision, *, reduces_per_step: bool
    ) -> None:
        self._reduces_per_step = reduces_per_step
        self._module, self._precision = module, precision
        self._plain_module = module.module if isinstance(module, DistributedDataParallel) else module
        self._device, self._count = distributed.device, distributed.layout.accumulation
        self.measures_waiting = isinstance(module, DistributedDataParallel) and distributed.layout.tensor == 1
        self._gradient_wait = GradientWait(module) if self.measures_waiting else None
        self._has_gradients = False  # whether all parameters had one after a backward pass

    def compute_gradients(self, batches: Iterator[Batch], timer: StepTimer) -> Tensor:
        """Run one step's micro-batches and return their loss and share."""
        total = torch.zeros(2, device=self._device)
        shares: list[Tensor] = []
        for number in range(1, self._count + 1):
            with timer.phase("data"):
                batch = next(batches)
            with self._gradient_sync(enabled=number == self._count):
                with timer.phase("forward"), self._precision.autocast():
                    inputs = _to_device(batch, self._device)
                    loss = self._module(*inputs) / self._count
                with timer.phase("backward"), self._measure_wait(timer):
                    self._precision.loss_scale.scale_loss(loss).backward()  # type: ignore[no-untyped-call]
            total += torch.stack([loss.detach(), target_share(inputs[1]) / self._count])
            if isinstance(self._plain_module, Decoder) and self._plain_module.expert_shares is not None:
                shares.append(self._plain_module.expert_shares)
        if not self._has_gradients:
            require_gradients(self._plain_module)
            self._has_gradients = True
        self.expert_shares = torch.stack(shares).mean(0) if shares else None
        return total

    def warm_up(self, batch: Batch) -> None:
        """Run a backward pass in which DDP assigns gradients to buckets, which sets the order of sums over ranks.

        Buffers that the forward pass changes (running statistics) are restored.
        """
        if isinstance(self._module, DistributedDataParallel):
            before = [buffer.clone() for buffer in self._module.buffers()]
            with self._precision.autocast():
                loss = self._module(*_to_device(batch, self._device))
            loss.backward()
            require_gradients(self._plain_module)
            self._has_gradients = True
            for buffer, value in zip(self._module.buffers(), before, strict=True):
                buffer.copy_(value)

    def close(self) -> None:
        """Remove the hooks that measure the wait for gradients."""
        if self._gradient_wait is not None:
            self._gradient_wait.close()

    def _measure_wait(self, timer: StepTimer) -> AbstractContextManager[None]:
        return nullcontext() if self._gradient_wait is None else self._gradient_wait.measure(timer)

    def _gradient_sync(self, *, enabled: bool) -> AbstractContextManager[None]:
        if isinstance(self._module, FSDPModule):
            if self._reduces_per_step:
                self._module.set_requires_gradient_sync(enabled)
            else:
                self._module.set_requires_all_reduce(enabled)
        elif isinstance(self._module, DistributedDataParallel) and not enabled:
            return self._module.no_sync()
        return nullcontext()

    def compute_loss(self, batches: Iterator[Batch], count: int) -> Tensor:
        """Return loss and share of `count` micro-batches, without gradients."""
        total = torch.zeros(2, device=self._device)
        for _ in range(count):
            inputs = _to_device(next(batches), self._device)
            with self._precision.autocast():
                loss = self._module(*inputs)
            total += torch.stack([loss.float(), target_share(inputs[1])])
        return total / count


class PipelinedForwardBackward(ForwardBackward):
    """Pipeline parallelism: a step's micro-batches pass through the stages. Each rank has one or several of them."""

    def __init__(
        self, module: nn.Module, config: TrainerConfig, distributed: DistributedContext, precision: Precision
    ) -> None:
        assert isinstance(config.model, DecoderConfig), "the configuration is validated"
        self._stages, self._distributed, self._scale = stages_of(module), distributed, precision.loss_scale
        self._micro_batch, self._model, self._type = config.micro_batch_size, config.model, precision.type
        schedule = Schedule1F1B if config.parallel.schedule == "1f1b" else ScheduleGPipe
        self._schedule = self._build_schedule(schedule, distributed.layout.accumulation)
        self._evaluation_schedules: dict[int, _Schedule] = {}  # by number of micro-batches

    def _build_schedule(self, schedule: type[PipelineScheduleSingle], count: int) -> _Schedule:
        """Return the schedule for `count` micro-batches: interleaved 1F1B if ranks have several stages."""
        distributed = self._distributed
        ranks, total = distributed.layout.pipeline, distributed.layout.pipeline * len(self._stages)
        stages: list[Any] = []
        for number, module in zip(range(distributed.pipeline_stage, total, ranks), self._stages, strict=True):
            inputs, outputs = self._stage_shapes(is_first=number == 0, is_last=number == total - 1)
            stage = PipelineStage(
                module,
                number,
                total,
                distributed.device,
                input_args=inputs,
                output_args=outputs,
                group=distributed.group("pipeline"),
            )
            stages.append(stage)
        # Losses are divided before the sum, as in `AccumulatedForwardBackward`: undivided sums can overflow fp16.
        loss = partial(self._loss, count)
        if len(stages) > 1:
            return ScheduleInterleaved1F1B(stages, count, loss_fn=loss, scale_grads=False)
        return schedule(stages[0], count, loss_fn=loss, scale_grads=False)

    def _stage_shapes(self, *, is_first: bool, is_last: bool) -> tuple[Tensor, Tensor]:
        """Return inputs and outputs of a stage without data: tokens, the residual stream, or the loss."""
        distributed, model, size = self._distributed, self._model, self._micro_batch
        shape = (size, model.sequence_length // (distributed.layout.tensor * distributed.layout.context), model.dim)
        with torch.device("meta"):
            stream = torch.empty(shape, dtype=self._type, requires_grad=True)
            tokens = torch.empty(size, model.sequence_length, dtype=torch.int64)
            loss = torch.empty((), requires_grad=True)
        return tokens if is_first else stream, loss if is_last else stream

    def _loss(self, count: int, loss: Tensor, _: Tensor) -> Tensor:
        """Scale the loss, which is the output of the last stage's forward pass."""
        return self._scale.scale_loss(loss / count) if torch.is_grad_enabled() else loss / count

    def compute_gradients(self, batches: Iterator[Batch], timer: StepTimer) -> Tensor:
        """Run one step's micro-batches and return their loss and share; 0 on all stages but the last."""
        count = self._distributed.layout.accumulation
        with timer.phase("data"):
            inputs, share = self._stage_inputs(batches, count)
        losses: list[Tensor] = []
        with timer.phase("backward"):  # includes the forward passes, which overlap
            self._schedule.step(**inputs, losses=losses, return_outputs=False)
        return torch.stack([self._sum(losses) / self._scale.value, share])

    def compute_loss(self, batches: Iterator[Batch], count: int) -> Tensor:
        """Return loss and share of `count` micro-batches, without gradients; 0 on all stages but the last."""
        if count not in self._evaluation_schedules:
            self._evaluation_schedules[count] = self._build_schedule(ScheduleGPipe, count)
        losses: list[Tensor] = []
        inputs, share = self._stage_inputs(batches, count)
        self._evaluation_schedules[count].eval(**inputs, losses=losses, return_outputs=False)
        return torch.stack([self._sum(losses), share])

    def _stage_inputs(self, batches: Iterator[Batch], count: int) -> tuple[dict[str, Any], Tensor]:
        """Return the tokens on the first stage, and their targets on the last, and the share that has a loss."""
        device = self._distributed.device
        micro_batches = [_to_device(next(batches), device) for _ in range(count)]
        share = torch.zeros((), device=device)
        inputs: dict[str, Any] = {
            "kwarg_mbs": [{"cu_seqlens": each[2] if len(each) > 2 else None} for each in micro_batches]
        }
        if self._distributed.pipeline_stage == 0:
            inputs["arg_mbs"] = [(tokens,) for tokens, *_ in micro_batches]
        if self._distributed.is_last_stage:
            for keywords, (_, targets, *_) in zip(inputs["kwarg_mbs"], micro_batches, strict=True):
                keywords["targets"] = targets
                share += target_share(targets) / count
            inputs["target_mbs"] = [torch.zeros((), device=device)] * count  # required by torch, not used
        return inputs, share

    def _sum(self, losses: list[Tensor]) -> Tensor:
        if not losses:
            return torch.zeros((), device=self._distributed.device)
        return torch.stack([loss.detach() for loss in losses]).sum()


def _to_device(batch: Batch, device: torch.device) -> tuple[Tensor, ...]:
    return tuple(tensor.to(device, non_blocking=True) for tensor in batch)
