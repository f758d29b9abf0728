"""Runs the layers of `trainer.low_precision` with tensors without data on a GPU that does not exist, a B200.

torchao then imports its kernels for GPUs, and calls their functions for tensors without data. Writes JSON: for each
precision the shapes of the output and of both gradients.
"""

import json
import sys
from types import SimpleNamespace
from typing import Any

import torch
from torch._dynamo.device_interface import CudaInterface
from torch._subclasses.fake_tensor import FakeTensorMode

PROPERTIES = SimpleNamespace(major=10, minor=0, multi_processor_count=148, name="NVIDIA B200")


class Context:
    """The context of an autograd function: torch runs no backward pass on a GPU that does not exist."""

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors


def pretend_gpu() -> None:
    """Let torch report a B200."""
    cuda: Any = torch.cuda
    cuda.is_available = lambda: True
    cuda.current_device = lambda: 0
    cuda.get_device_properties = lambda *_: PROPERTIES
    cuda.get_device_capability = lambda *_: (10, 0)
    cuda.get_device_name = lambda *_: PROPERTIES.name
    CudaInterface.Worker.get_device_properties = staticmethod(lambda *_: PROPERTIES)  # type: ignore[assignment, method-assign]


def run(function: Any, layer: torch.nn.Module) -> list[list[int]]:
    """Call a layer, and the backward pass of the autograd function that it applies."""
    contexts: list[Context] = []

    def apply(*arguments: Any) -> Any:
        contexts.append(Context())
        return function.forward(contexts[-1], *arguments)

    function.apply = apply
    output = layer(torch.empty(2, 128, 256, dtype=torch.bfloat16, device="cuda"))
    gradients = function.backward(contexts[0], torch.empty_like(output))
    return [list(each.shape) for each in (output, *gradients[:2])]


def main() -> None:
    pretend_gpu()
    from trainer import low_precision

    shapes = {}
    with FakeTensorMode(), torch.no_grad():
        layer = torch.nn.Linear(256, 512, bias=False, device="meta")
        layer.weight = torch.nn.Parameter(
            torch.empty(512, 256, dtype=torch.bfloat16, device="cuda"), requires_grad=False
        )
        nvfp4, mxfp8 = low_precision.nvfp4_layer(layer), low_precision.mxfp8_layer(layer, on_gpu=True)
        from torchao.prototype.moe_training.mxfp8_linear import mx_mm
        from torchao.prototype.moe_training.nvfp4_training.nvfp4_linear import nvfp4_mm_triton

        shapes = {"mxfp8": run(mx_mm, mxfp8), "nvfp4": run(nvfp4_mm_triton, nvfp4)}
    sys.stdout.write(json.dumps(shapes))


if __name__ == "__main__":
    main()
