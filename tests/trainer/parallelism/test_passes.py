"""A step's passes on one rank. Several ranks': test_layouts.py, test_exchange.py."""

import torch

from tests.trainer.conftest import tiny
from trainer.models import build
from trainer.parallelism import passes_of, spread
from trainer.precision import Precision
from trainer.ranks import join
from trainer.settings import Environment

CPU = torch.device("cpu")


def test_the_warm_up_leaves_running_statistics_as_they_are(alone: Environment) -> None:
    """It sees held-out samples, and the first step is to see none of them."""
    config = tiny(model={"kind": "images", "architecture": "resnet18", "classes": 10, "image_size": 32})
    model, precision = build(config), Precision(config, CPU)
    with join(config, alone, CPU) as ranks:
        module = spread(model, config, ranks, precision)
        before = {name: each.clone() for name, each in model.module.named_buffers()}
        passes_of(module, config, ranks, precision).warm_up((torch.randn(2, 3, 32, 32), torch.tensor([1, 2])))
    assert all(parameter.grad is not None for parameter in model.module.parameters())
    for name, each in model.module.named_buffers():
        assert torch.equal(each, before[name]), name
