"""Layers in 8 and 4 bits on the GPUs that they need."""

import json
import subprocess
import sys

from tests.trainer.conftest import ROOT


def test_layers_call_the_kernels_of_a_b200() -> None:
    """The kernels do not run: tensors have no data. torchao's functions check types and sizes, and return shapes."""
    command = [sys.executable, "-m", "tests.trainer.blackwell"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stderr[-2000:]
    shapes = [[2, 128, 512], [2, 128, 256], [512, 256]]  # output, gradients of input and weight
    assert json.loads(process.stdout) == {"mxfp8": shapes, "nvfp4": shapes}
