"""Samples of labelled images: decoded by Pillow and augmented by torchvision, on the CPU.

torchvision's own decoders are deprecated since 0.29.
"""

import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import functional as transforms

from trainer.data.cache import Cache
from trainer.data.counter_rng import IntArray, random_bits, uniform
from trainer.data.shards import MappedShards
from trainer.data.tar import Entries, read_entries
from trainyard.models.dataset import ImageDataset, Shard

_SCALE, _RATIO, _ATTEMPTS = (0.08, 1.0), (3 / 4, 4 / 3), 10  # of torchvision's RandomResizedCrop
RESIZE = 256 / 224  # shorter side of a held-out image over the side of the center crop
AUGMENTATION = 17  # purpose of the random bits: other purposes have other numbers
DRAWS_PER_IMAGE = 1 + 4 * _ATTEMPTS  # the flip, then four values for each attempt of a crop
_MAX_TABLES = 256  # shards with their table of samples in memory


class ImageSamples:
    """Pixels as uint8 (samples, 3, size, size), labels as int64 (samples,)."""

    def __init__(
        self, index: ImageDataset, listed: Sequence[Shard], cache: Cache, size: int, *, augment: bool, seed: int
    ) -> None:
        """`augment`: random resized crops and flips, for training; otherwise center crops."""
        self.counts = [shard.count for shard in listed]
        self.samples_per_read, self.is_cheap = 1, False
        self.shards = MappedShards(listed, cache)
        self._classes, self.size, self.augment, self.seed = len(index.classes), size, augment, seed
        self._tables: dict[int, Entries] = {}

    def read(self, shards: IntArray, indices: IntArray, positions: IntArray) -> tuple[Tensor, Tensor]:
        """Return pixels and labels. Raises OSError for an image that can't be decoded."""
        encoded, labels = self._read_encoded(shards, indices)
        draws = uniform(random_bits(self.seed, AUGMENTATION, positions[:, None], np.arange(DRAWS_PER_IMAGE)))
        pixels = torch.empty(len(encoded), 3, self.size, self.size, dtype=torch.uint8)
        for row, (image, image_draws) in enumerate(zip(encoded, draws, strict=True)):
            try:
                decoded = transforms.pil_to_tensor(Image.open(io.BytesIO(image)).convert("RGB"))
            except (OSError, ValueError, Image.DecompressionBombError) as error:
                uri = self.shards.cache.shard_uri(self.shards.listed[int(shards[row])])
                raise OSError(f"{uri}: image {indices[row]} can't be decoded: {error}") from error
            pixels[row] = self._augmented(decoded, image_draws) if self.augment else self._center_crop(decoded)
        return pixels, torch.from_numpy(labels)

    def batch(self, read: tuple[Any, ...]) -> tuple[Tensor, ...]:
        """Return the tensors of `read` unchanged."""
        return read

    def complete(self, batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the batch unchanged."""
        return batch

    def _read_encoded(self, shards: IntArray, indices: IntArray) -> tuple[list[memoryview], IntArray]:
        """Return the encoded image files and their labels."""
        images, labels = [], np.empty(len(shards), dtype=np.int64)
        for row, (shard, index) in enumerate(zip(shards.tolist(), indices.tolist(), strict=True)):
            content = self.shards[shard]
            entry = self._table(shard)[index]
            images.append(content[entry["offset"] : entry["offset"] + entry["size"]])
            labels[row] = entry["label"]
        return images, labels

    def close(self) -> None:
        """Close the shards."""
        self.shards.close()

    def _table(self, shard: int) -> Entries:
        table = self._tables.get(shard)
        if table is None:
            if len(self._tables) >= _MAX_TABLES:
                self._tables.pop(next(iter(self._tables)))
            table = self._tables[shard] = read_entries(self.shards.listed[shard], self.shards.cache, self._classes)
        return table

    def _augmented(self, image: Tensor, draws: npt.NDArray[np.float64]) -> Tensor:
        box = random_resized_crop(image.shape[-2], image.shape[-1], draws[1:])
        size = [self.size, self.size]
        cropped: Tensor = transforms.resized_crop(image, *box, size, antialias=True)
        return cropped.flip(-1) if is_flipped(draws) else cropped

    def _center_crop(self, image: Tensor) -> Tensor:
        resized = transforms.resize(image, [round(self.size * RESIZE)], antialias=True)
        cropped: Tensor = transforms.center_crop(resized, [self.size, self.size])
        return cropped


def is_flipped(draws: npt.NDArray[np.float64]) -> bool:
    """Return whether the image with these uniform draws is flipped horizontally: the first draw decides."""
    return bool(draws[0] < 0.5)


def random_resized_crop(height: int, width: int, draws: npt.NDArray[np.float64]) -> tuple[int, int, int, int]:
    """Return top, left, height and width of the crop, by the rule of torchvision's RandomResizedCrop.

    torchvision's class draws from torch's global generator. The model uses that generator, and a thread must not.
    """
    low, high = math.log(_RATIO[0]), math.log(_RATIO[1])
    for scale, ratio, vertical, horizontal in draws.reshape(_ATTEMPTS, 4).tolist():
        area = height * width * (_SCALE[0] + scale * (_SCALE[1] - _SCALE[0]))
        aspect = math.exp(low + ratio * (high - low))
        crop_width, crop_height = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < crop_width <= width and 0 < crop_height <= height:
            top = int(vertical * (height - crop_height + 1))
            return top, int(horizontal * (width - crop_width + 1)), crop_height, crop_width
    # Fallback for images far from square: the largest center crop with an allowed aspect ratio.
    aspect = min(max(width / height, _RATIO[0]), _RATIO[1])
    crop_width, crop_height = min(width, round(height * aspect)), min(height, round(width / aspect))
    return (height - crop_height) // 2, (width - crop_width) // 2, crop_height, crop_width
