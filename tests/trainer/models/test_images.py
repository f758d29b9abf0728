"""Image classifiers."""

import torch
from torchvision.transforms.v2 import functional

from trainer.models.images import MEAN, STD, Normalization, build_classifier
from trainyard.config.training.models import ImageModelConfig


def test_resnet_50_has_its_size_and_blocks() -> None:
    model = build_classifier(ImageModelConfig(kind="images"))
    assert sum(parameter.numel() for parameter in model.module.parameters()) == 25_557_032  # torchvision's table
    assert len(model.blocks) == 3 + 4 + 6 + 3


def test_pixels_are_normalized_on_the_device_of_the_model() -> None:
    torch.manual_seed(0)
    pixels, labels = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8), torch.arange(4)
    expected = functional.normalize(pixels.float() / 255, list(MEAN), list(STD))
    torch.testing.assert_close(Normalization()(pixels), expected)
    model = build_classifier(ImageModelConfig(kind="images", architecture="resnet18", classes=10, image_size=32))
    model.module.eval()
    torch.testing.assert_close(model.module(pixels, labels), model.module(expected, labels))


def test_initial_loss_is_that_of_uniform_predictions() -> None:
    torch.manual_seed(0)
    model = build_classifier(ImageModelConfig(kind="images", architecture="resnet18", classes=10, image_size=32))
    loss = model.module(torch.randn(8, 3, 32, 32), torch.arange(8))
    assert abs(loss.item() - torch.log(torch.tensor(10.0)).item()) < 0.5
