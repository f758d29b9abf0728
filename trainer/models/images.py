"""Image classifiers of torchvision."""

import torch
import torchvision
from torch import Tensor, nn

from trainer.models.model import Model, find_blocks
from trainer.telemetry.flops import counted_flops
from trainyard.config.training.models import ImageModelConfig


class Classifier(nn.Module):
    """An image classifier that returns the mean loss.

    Called with (batch, 3, size, size) pixels and (batch,) labels, it returns the loss in nats per image.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy, nats."""
        return nn.functional.cross_entropy(self.model(pixels).float(), labels)


def build_classifier(config: ImageModelConfig) -> Model:
    """Build a classifier with torchvision's initial weights, the last normalization of each block at zero."""
    make = getattr(torchvision.models, config.architecture)
    module = Classifier(make(num_classes=config.classes, zero_init_residual=True))
    sample = torch.zeros(2, 3, config.image_size, config.image_size), torch.zeros(2, dtype=torch.int64)
    return Model(
        module=module,
        blocks=dict(find_blocks(module)),
        initialize=None,
        vocabulary=config.classes,
        parameters=sum(parameter.numel() for parameter in module.parameters()),
        flops=counted_flops(module, lambda: module(*sample)) / len(sample[0]),
    )
