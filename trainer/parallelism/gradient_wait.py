"""Measures how long a rank waits for the gradients of the other ranks."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch import Tensor, nn

from trainer.telemetry.timing import StepTimer


class GradientWait:
    """The wait of DistributedDataParallel, from this rank's last gradient to the end of the backward pass.

    Other layouts wait in the middle of the forward and the backward pass, where torch has no hook.
    """

    def __init__(self, module: nn.Module) -> None:
        self._parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._missing = 0  # gradients of the current backward pass
        self._timer: StepTimer | None = None
        self._wait = ExitStack()
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._count_gradient)  # type: ignore[no-untyped-call]
            for parameter in self._parameters
        ]

    def close(self) -> None:
        """Remove the hooks from the parameters."""
        for hook in self._hooks:
            hook.remove()

    @contextmanager
    def measure(self, timer: StepTimer) -> Iterator[None]:
        """Measure the wait of the backward pass that runs in this context."""
        self._timer, self._missing = timer, len(self._parameters)
        yield
        self._wait.close()
        self._timer = None

    def _count_gradient(self, _: Tensor) -> None:
        # Runs before DistributedDataParallel's hook, which starts to reduce the last gradients.
        self._missing -= 1
        if self._timer is not None and self._missing == 0:
            self._wait.enter_context(self._timer.waiting())
