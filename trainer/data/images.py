"""Samples of labelled images: decoded by Pillow, augmented and normalised by torchvision, on the CPU.

torchvision's own decoders are deprecated since 0.29."""

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
from trainer.data.draws import Counts, keyed, uniform
from trainer.data.shards import Shards
from trainer.data.tar import Entries, entries
from trainyard.models.dataset import ImageDataset, Shard

# ImageNet's mean and standard deviation of each channel, as torchvision's own weights have them.
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_SCALE, _RATIO, _TRIES = (0.08, 1.0), (3 / 4, 4 / 3), 10  # torchvision's RandomResizedCrop
RESIZE = 256 / 224  # of a held-out image's shorter side, before its centre is taken
AUGMENTING = 17  # what a key is for
DRAWS = 1 + 4 * _TRIES  # of one image: the flip, then each try of a crop
_TABLES = 256  # shards whose tables are kept in memory


class ImageSamples:
    """Pixels float32 (samples, 3, size, size), labels int64 (samples,)."""

    def __init__(
        self, index: ImageDataset, listed: Sequence[Shard], cache: Cache, size: int, *, augment: bool, seed: int
    ) -> None:
        """`augment`: a random crop, resized and perhaps flipped, as one trains; else the centre."""
        self.counts = [shard.count for shard in listed]
        self.together, self.quick = 1, False
        self.shards = Shards(listed, cache)
        self._classes, self.size, self.augment, self.seed = len(index.classes), size, augment, seed
        self._entries: dict[int, Entries] = {}

    def read(self, shards: Counts, indices: Counts, positions: Counts) -> tuple[Tensor, Tensor]:
        """Raises OSError for an image that can't be decoded."""
        encoded, labels = self.encoded(shards, indices)
        draws = uniform(keyed(self.seed, AUGMENTING, positions[:, None], np.arange(DRAWS)))
        pixels = torch.empty(len(encoded), 3, self.size, self.size, dtype=torch.uint8)
        for row, (image, of_it) in enumerate(zip(encoded, draws, strict=True)):
            try:
                decoded = transforms.pil_to_tensor(Image.open(io.BytesIO(image)).convert("RGB"))
            except (OSError, ValueError, Image.DecompressionBombError) as error:
                name = self.shards.cache.name_of(self.shards.listed[int(shards[row])])
                raise OSError(f"{name}: image {indices[row]} can't be decoded: {error}") from error
            pixels[row] = self._augmented(decoded, of_it) if self.augment else self._centre(decoded)
        return transforms.normalize(pixels.float().div_(255), MEAN, DEVIATION, inplace=True), torch.from_numpy(labels)

    def batch(self, read: tuple[Any, ...]) -> tuple[Tensor, ...]:
        return read

    def encoded(self, shards: Counts, indices: Counts) -> tuple[list[memoryview], Counts]:
        """The images' files as they are, and their labels."""
        images, labels = [], np.empty(len(shards), dtype=np.int64)
        for row, (shard, index) in enumerate(zip(shards.tolist(), indices.tolist(), strict=True)):
            content = self.shards[shard]
            entry = self._table(shard)[index]
            images.append(content[entry["offset"] : entry["offset"] + entry["size"]])
            labels[row] = entry["label"]
        return images, labels

    def close(self) -> None:
        self.shards.close()

    def _table(self, shard: int) -> Entries:
        found = self._entries.get(shard)
        if found is None:
            if len(self._entries) >= _TABLES:
                self._entries.pop(next(iter(self._entries)))
            found = self._entries[shard] = entries(self.shards.listed[shard], self.shards.cache, self._classes)
        return found

    def _augmented(self, image: Tensor, draws: npt.NDArray[np.float64]) -> Tensor:
        top, left, height, width = crop(image.shape[-2], image.shape[-1], draws[1:])
        size = [self.size, self.size]
        cropped: Tensor = transforms.resized_crop(image, top, left, height, width, size, antialias=True)
        return cropped.flip(-1) if flips(draws) else cropped

    def _centre(self, image: Tensor) -> Tensor:
        resized = transforms.resize(image, [round(self.size * RESIZE)], antialias=True)
        centre: Tensor = transforms.center_crop(resized, [self.size, self.size])
        return centre


def flips(draws: npt.NDArray[np.float64]) -> bool:
    """Whether the image of these draws (the first of them counts) is turned left to right."""
    return bool(draws[0] < 0.5)


def crop(height: int, width: int, draws: npt.NDArray[np.float64]) -> tuple[int, int, int, int]:
    """Top, left, height, width of the part to take, by torchvision's rule for RandomResizedCrop.

    Its own class draws from torch's global generator, which is the model's: a thread may not.
    """
    low, high = math.log(_RATIO[0]), math.log(_RATIO[1])
    for scale, ratio, down, right in draws.reshape(_TRIES, 4).tolist():
        area = height * width * (_SCALE[0] + scale * (_SCALE[1] - _SCALE[0]))
        aspect = math.exp(low + ratio * (high - low))
        across, up = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < across <= width and 0 < up <= height:
            return int(down * (height - up + 1)), int(right * (width - across + 1)), up, across
    aspect = min(max(width / height, _RATIO[0]), _RATIO[1])  # far from square: as much of the centre as may be
    across, up = min(width, round(height * aspect)), min(height, round(width / aspect))
    return (height - up) // 2, (width - across) // 2, up, across
