"""Forward and backward passes on one rank. For several ranks: test_layouts.py, test_exchange.py."""

import torch

from tests.trainer.conftest import tiny
from trainer.distributed import init_distributed
from trainer.models import build
from trainer.parallelism import build_forward_backward, parallelize, wrap_in_ddp
from trainer.precision import Precision
from trainer.settings import Environment

CPU = torch.device("cpu")


def test_warm_up_restores_running_statistics(alone: Environment) -> None:
    """The warm-up uses held-out samples, which must not influence training."""
    config = tiny(model={"kind": "images", "architecture": "resnet18", "classes": 10, "image_size": 32})
    model, precision = build(config), Precision(config, CPU)
    with init_distributed(config, alone, CPU) as distributed:
        parallelize(model, config, distributed, precision)
        module = wrap_in_ddp(model, config, distributed)
        before = {name: buffer.clone() for name, buffer in model.module.named_buffers()}
        batch = torch.randn(2, 3, 32, 32), torch.tensor([1, 2])
        build_forward_backward(module, config, distributed, precision).warm_up(batch)
    assert all(parameter.grad is not None for parameter in model.module.parameters())
    for name, buffer in model.module.named_buffers():
        assert torch.equal(buffer, before[name]), name
