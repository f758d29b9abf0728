"""Image classifiers of torchvision."""

import torch
import torchvision
from torch import Tensor, nn

from trainer.models.model import Model, find_blocks
from trainer.telemetry.flops import counted_flops
from trainyard.config.training.models import ImageModelConfig

# Mean and standard deviation of each channel of ImageNet, as torchvision's pretrained weights use them.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Normalization(nn.Module):
    """Returns uint8 pixels (batch, 3, height, width) as normalized float32.

    Mean and deviation are buffers: a copy to the device for each batch would wait for it.
    """

    mean: Tensor
    std: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name, values in (("mean", MEAN), ("std", STD)):
            self.register_buffer(name, torch.tensor(values).view(3, 1, 1), persistent=False)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the normalized pixels."""
        return (pixels.float() / 255 - self.mean) / self.std


class Classifier(nn.Module):
    """An image classifier that returns the mean loss.

    Called with (batch, 3, size, size) pixels and (batch,) labels, it returns the loss in nats per image. uint8 pixels
    are normalized here. Convolutions are faster with the channels in the last dimension of the memory.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.normalization = model, Normalization()

    def forward(self, pixels: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy, nats."""
        if pixels.dtype == torch.uint8:
            pixels = self.normalization(pixels).to(next(self.model.parameters()).dtype)
        logits: Tensor = self.model(pixels.contiguous(memory_format=torch.channels_last))
        return nn.functional.cross_entropy(logits.float(), labels)


def build_classifier(config: ImageModelConfig, *, sharded: bool = False) -> Model:
    """Build a classifier with torchvision's initial weights, the last normalization of each block at zero.

    `sharded`: FSDP shards the parameters. It supports contiguous ones only.
    """
    make = getattr(torchvision.models, config.architecture)
    module = Classifier(make(num_classes=config.classes, zero_init_residual=True))
    if not sharded:
        module = module.to(memory_format=torch.channels_last)
    sample = torch.zeros(2, 3, config.image_size, config.image_size), torch.zeros(2, dtype=torch.int64)
    return Model(
        module=module,
        blocks=dict(find_blocks(module)),
        initialize=None,
        vocabulary=config.classes,
        parameters=sum(parameter.numel() for parameter in module.parameters()),
        flops=counted_flops(module, lambda: module(*sample)) / len(sample[0]),
    )
