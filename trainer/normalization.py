"""Normalization of pixels, on the device of the model: uint8 pixels have a quarter of the bytes."""

import torch
from torch import Tensor

# Mean and standard deviation of each channel of ImageNet, as torchvision's pretrained weights use them.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def normalize(pixels: Tensor) -> Tensor:
    """Return uint8 pixels (batch, 3, height, width) as normalized float32."""
    mean, std = (torch.tensor(values, device=pixels.device).view(3, 1, 1) for values in (MEAN, STD))
    return (pixels.float() / 255 - mean) / std
