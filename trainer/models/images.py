"""Image classifiers of torchvision."""

import torch
import torchvision
from torch import Tensor, nn

from trainer.models.built import Model, repeated
from trainer.telemetry.flops import counted_flops
from trainyard.config.training.models import ImageModelConfig


class Classifier(nn.Module):
    """Called with (batch, 3, size, size) pixels and (batch,) labels, it gives the mean loss in nats an image."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.model(pixels).float(), labels)


def classifier(config: ImageModelConfig) -> Model:
    """With fresh weights: torchvision's own start, the last normalisation of each block at zero."""
    make = getattr(torchvision.models, config.architecture)
    module = Classifier(make(num_classes=config.classes, zero_init_residual=True))
    sample = torch.zeros(2, 3, config.image_size, config.image_size), torch.zeros(2, dtype=torch.int64)
    return Model(
        module=module,
        blocks=dict(repeated(module)),
        initialize=None,
        vocabulary=config.classes,
        parameters=sum(parameter.numel() for parameter in module.parameters()),
        flops=counted_flops(module, lambda: module(*sample)) / len(sample[0]),
    )
