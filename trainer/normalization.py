"""Normalization of pixels, on the device of the model: uint8 pixels have a quarter of the bytes."""

import torch
from torch import Tensor, nn

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
