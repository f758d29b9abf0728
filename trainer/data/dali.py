"""Images decoded and augmented by NVIDIA's DALI on the GPU, behind the same interface as trainer.data.loader.

Not run where this was written, which had no GPU: only that it asks for what it needs. Order, crops and flips are those
of trainer.data.images, drawn here and fed to DALI with the images' files. Its decoder and its resampling differ, and
the centre of a held-out image, which is cut out before it is resized and not after: by a pixel.
"""

import io
from collections.abc import Iterator
from itertools import count, cycle
from typing import Any

import numpy as np
import torch

from trainer.data.draws import keyed, uniform
from trainer.data.images import AUGMENTING, DEVIATION, DRAWS, MEAN, RESIZE, ImageSamples, crop, flips
from trainer.data.loader import Batches
from trainer.data.order import Order, of_rank
from trainyard.base import InputError, Problem

_THREADS = 4  # of the CPU's part of decoding


def _dali() -> Any:
    """Raises InputError where it can't be used."""

    def mistake(why: str, fix: str) -> InputError:
        return InputError([Problem(key="config.data.images", value="dali", why=why, fix=fix)])

    if not torch.cuda.is_available():
        raise mistake("DALI needs a GPU, and there is none", "Take torchvision, or a node with a GPU")
    try:
        import nvidia.dali
        import nvidia.dali.fn
        import nvidia.dali.plugin.pytorch
    except ImportError as error:
        fix = "Install nvidia-dali-cuda130 (of the CUDA version of torch) on the nodes, or take torchvision"
        raise mistake(f"nvidia.dali can't be imported: {error}", fix) from None
    return nvidia.dali


class DaliLoader:
    """Micro-batches on this process's GPU."""

    def __init__(
        self, samples: ImageSamples, order: Order, *, rank: int, ranks: int, micro_batch: int, prefetch: int
    ) -> None:
        """Raises InputError without DALI or a GPU."""
        self._dali = _dali()
        self._samples, self._order = samples, order
        self._rank, self._ranks, self._micro_batch, self._prefetch = rank, ranks, micro_batch, prefetch
        self._kept: tuple[tuple[int, int], Batches] | None = None
        self._left = 0  # of the micro-batches that were asked of it last

    def batches(self, consumed: int, number: int | None = None) -> Batches:
        if number is None:
            return self._run(self._fed(consumed, count()))
        return self._again(consumed, number)

    def close(self) -> None:
        self._kept = None
        self._samples.close()

    def _again(self, consumed: int, number: int) -> Batches:
        """By one pipeline, which begins anew after the last of them: to build one costs memory of the GPU and time."""
        if self._kept is None or self._kept[0] != (consumed, number) or self._left:
            self._kept = (consumed, number), self._run(self._fed(consumed, cycle(range(number))))
        _, run = self._kept
        for self._left in reversed(range(number)):
            yield next(run)

    def _run(self, fed: Iterator[tuple[Any, ...]]) -> Batches:
        pipeline = self._pipeline(fed)
        pipeline.build()
        while True:
            pixels, labels = pipeline.run()
            yield self._as_tensor(pixels.as_tensor()), self._as_tensor(labels.as_tensor()).flatten()

    def _fed(self, consumed: int, numbers: Iterator[int]) -> Iterator[tuple[Any, ...]]:
        """Files, labels, crops (top, left; height, width, as parts of the image) and flips of each micro-batch."""
        for number in numbers:
            positions = of_rank(consumed, self._rank, self._ranks, self._micro_batch, number)
            files, labels = self._samples.encoded(*self._order.locate(positions))
            at = np.arange(positions.start, positions.stop, positions.step)
            draws = uniform(keyed(self._samples.seed, AUGMENTING, at[:, None], np.arange(DRAWS)))
            content = [np.frombuffer(file, dtype=np.uint8) for file in files]
            windows = [self._window(file, of_it) for file, of_it in zip(content, draws, strict=True)]
            mirrored = [np.array(self._samples.augment and flips(of_it), dtype=np.int32) for of_it in draws]
            starts, shapes = [start for start, _ in windows], [shape for _, shape in windows]
            yield content, [np.array([label]) for label in labels], starts, shapes, mirrored

    def _window(self, file: Any, draws: Any) -> tuple[Any, Any]:
        from PIL import Image  # torchvision brings it; it reads the size from the file's head

        with Image.open(io.BytesIO(file)) as image:
            width, height = image.size
        if self._samples.augment:
            top, left, rows, columns = crop(height, width, draws[1:])
        else:
            rows = columns = max(1, round(min(height, width) / RESIZE))
            top, left = (height - rows) // 2, (width - columns) // 2
        size = np.array([height, width], dtype=np.float32)
        return np.array([top, left], dtype=np.float32) / size, np.array([rows, columns], dtype=np.float32) / size

    def _pipeline(self, fed: Iterator[tuple[Any, ...]]) -> Any:
        fn, types = self._dali.fn, self._dali.types
        pipeline = self._dali.Pipeline(
            batch_size=self._micro_batch,
            num_threads=_THREADS,
            device_id=torch.cuda.current_device(),
            prefetch_queue_depth=self._prefetch,
        )
        with pipeline:
            files, labels, starts, shapes, mirrored = fn.external_source(source=fed, num_outputs=5, batch=True)
            decoded = fn.decoders.image_slice(
                files,
                starts,
                shapes,
                device="mixed",
                output_type=types.RGB,
                axis_names="HW",
                adjust_orientation=False,  # else it turns images by their EXIF, as Pillow does not
            )
            resized = fn.resize(decoded, size=[self._samples.size, self._samples.size], antialias=True)
            pixels = fn.crop_mirror_normalize(
                resized,
                mirror=mirrored,
                mean=[255 * value for value in MEAN],
                std=[255 * value for value in DEVIATION],
                dtype=types.FLOAT,
                output_layout="CHW",
            )
            pipeline.set_outputs(pixels, labels.gpu())
        return pipeline

    def _as_tensor(self, found: Any) -> torch.Tensor:
        types = self._dali.types
        kind = {types.FLOAT: torch.float32, types.INT64: torch.int64}[found.dtype]
        tensor = torch.empty(found.shape(), dtype=kind, device="cuda")
        self._dali.plugin.pytorch.feed_ndarray(found, tensor, cuda_stream=torch.cuda.current_stream())
        torch.cuda.current_stream().synchronize()  # the pipeline uses its own buffer again
        return tensor
