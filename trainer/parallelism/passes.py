"""A step's forward and backward passes: one micro-batch after the other, or through the stages of a pipeline."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import PipelineScheduleSingle
from torch.nn.parallel import DistributedDataParallel

from trainer.precision import Precision
from trainer.ranks import Ranks
from trainer.telemetry.timing import Clock
from trainyard.config.training import TrainerConfig

Batch = Sequence[Tensor]


class Passes(ABC):
    """`gradients` and `losses` give the mean over the micro-batches, detached; a pipeline's last stage knows it."""

    @abstractmethod
    def gradients(self, batches: Iterator[Batch], clock: Clock) -> Tensor:
        """Of one step's micro-batches. Gradients are those of the mean over all ranks that share the batch."""

    def warm_up(self, batch: Batch) -> None:
        """Spend what only a first pass does, so that the first step after a resume adds up as any other."""
        return

    @abstractmethod
    def losses(self, batches: Iterator[Batch], count: int) -> Tensor:
        """Of `count` micro-batches that are not trained on."""


class Accumulated(Passes):
    """One after the other; the ranks' gradients meet on the last one only."""

    def __init__(self, module: nn.Module, ranks: Ranks, precision: Precision) -> None:
        self._module, self._precision = module, precision
        self._device, self._count = ranks.device, ranks.layout.accumulation

    def gradients(self, batches: Iterator[Batch], clock: Clock) -> Tensor:
        total = torch.zeros((), device=self._device)
        for number in range(1, self._count + 1):
            with clock.phase("data"):
                batch = next(batches)
            with self._together(last=number == self._count):
                with clock.phase("forward"), self._precision.autocast():
                    loss = self._module(*_moved(batch, self._device)) / self._count
                with clock.phase("backward"):
                    self._precision.loss_scale.scaled(loss).backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        return total

    def warm_up(self, batch: Batch) -> None:
        """DDP's first backward pass decides how gradients share buckets, and with it the order of sums over ranks.

        What a forward pass changes beside that, running statistics, is as before.
        """
        if isinstance(self._module, DistributedDataParallel):
            before = [buffer.clone() for buffer in self._module.buffers()]
            with self._precision.autocast():
                loss = self._module(*_moved(batch, self._device))
            loss.backward()
            for buffer, value in zip(self._module.buffers(), before, strict=True):
                buffer.copy_(value)

    def _together(self, *, last: bool) -> AbstractContextManager[None]:
        if isinstance(self._module, FSDPModule):
            self._module.set_requires_gradient_sync(last)
        elif isinstance(self._module, DistributedDataParallel) and not last:
            return self._module.no_sync()
        return nullcontext()

    def losses(self, batches: Iterator[Batch], count: int) -> Tensor:
        total = torch.zeros((), device=self._device)
        for _ in range(count):
            with self._precision.autocast():
                total += self._module(*_moved(next(batches), self._device))
        return total / count


class Pipelined(Passes):
    """The micro-batches of a step follow one another through the stages. Each rank is one stage."""

    def __init__(self, module: nn.Module, config: TrainerConfig, ranks: Ranks, precision: Precision) -> None:
        self._module, self._ranks, self._scale = module, ranks, precision.loss_scale
        self._schedule = self._scheduled(
            Schedule1F1B if config.parallel.schedule == "1f1b" else ScheduleGPipe, ranks.layout.accumulation
        )
        self._held_out: dict[int, PipelineScheduleSingle] = {}  # by the number of micro-batches

    def _scheduled(self, kind: type[PipelineScheduleSingle], count: int) -> PipelineScheduleSingle:
        ranks = self._ranks
        stages = ranks.layout.pipeline
        stage = PipelineStage(self._module, ranks.stage, stages, ranks.device, group=ranks.group("pipeline"))
        # What is summed is divided before, as in `Accumulated`: afterwards fp16 would hold so much less.
        return kind(stage, count, loss_fn=partial(self._loss, count), scale_grads=False)

    def _loss(self, count: int, loss: Tensor, _: Tensor) -> Tensor:
        """The last stage's forward pass ends in the loss itself."""
        return self._scale.scaled(loss / count) if torch.is_grad_enabled() else loss / count

    def gradients(self, batches: Iterator[Batch], clock: Clock) -> Tensor:
        count = self._ranks.layout.accumulation
        with clock.phase("data"):
            given = self._given(batches, count)
        losses: list[Tensor] = []
        with clock.phase("backward"):  # and forward, which it overlaps
            self._schedule.step(**given, losses=losses, return_outputs=False)
        return self._sum(losses) / self._scale.value

    def losses(self, batches: Iterator[Batch], count: int) -> Tensor:
        if count not in self._held_out:
            self._held_out[count] = self._scheduled(ScheduleGPipe, count)
        losses: list[Tensor] = []
        self._held_out[count].eval(**self._given(batches, count), losses=losses, return_outputs=False)
        return self._sum(losses)

    def _given(self, batches: Iterator[Batch], count: int) -> dict[str, Any]:
        """The first stage takes the tokens, and the last one their successors."""
        device, none = self._ranks.device, torch.zeros(())
        pairs = [_moved(next(batches), device) for _ in range(count)]
        given: dict[str, Any] = {}
        if self._ranks.stage == 0:
            given["arg_mbs"] = [(tokens,) for tokens, _ in pairs]
        if self._ranks.last_stage:
            given["kwarg_mbs"] = [{"successors": successors} for _, successors in pairs]
            given["target_mbs"] = [none.to(device)] * count
        return given

    def _sum(self, losses: list[Tensor]) -> Tensor:
        if not losses:
            return torch.zeros((), device=self._ranks.device)
        return torch.stack([loss.detach() for loss in losses]).sum()


def _moved(batch: Batch, device: torch.device) -> tuple[Tensor, ...]:
    return tuple(each.to(device, non_blocking=True) for each in batch)
