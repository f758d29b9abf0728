"""Decodes and augments images with NVIDIA DALI on the GPU, behind the same interface as trainer.data.loader.

It has not run on a GPU: the tests only check the calls to DALI. Order, crops and flips are those of
trainer.data.images, computed here and passed to DALI with the image files. DALI's decoder and resampling differ. The
center crop of a held-out image differs by a pixel, because it is cut before the resize and not after it.
"""

import io
from collections.abc import Iterator
from itertools import count, cycle
from typing import Any

import numpy as np
import torch

from trainer.data.counter_rng import random_bits, uniform
from trainer.data.images import (
    AUGMENTATION,
    DRAWS_PER_IMAGE,
    RESIZE,
    ImageSamples,
    is_flipped,
    random_resized_crop,
)
from trainer.data.loader import Batches
from trainer.data.order import SampleOrder, positions_of_rank
from trainer.normalization import MEAN, STD
from trainyard.errors import InputError, Problem

_CPU_THREADS = 4  # for the part of decoding that runs on the CPU


def _import_dali() -> Any:
    """Import DALI. Raises InputError if it is not installed or there is no GPU."""

    def input_error(reason: str, fix: str, code: str) -> InputError:
        return InputError([Problem("config.data.images", "dali", reason, fix, code)])

    if not torch.cuda.is_available():
        raise input_error("DALI needs a GPU, and there is none", "Use torchvision, or a node with a GPU", "gpu_missing")
    try:
        import nvidia.dali
        import nvidia.dali.fn
        import nvidia.dali.plugin.pytorch
    except ImportError as error:
        fix = "Install nvidia-dali-cuda130 (of the CUDA version of torch) on the nodes, or use torchvision"
        raise input_error(f"nvidia.dali can't be imported: {error}", fix, "dali_not_importable") from None
    return nvidia.dali


class DaliLoader:
    """Micro-batches on this process's GPU."""

    def __init__(
        self, samples: ImageSamples, order: SampleOrder, *, rank: int, ranks: int, micro_batch: int, prefetch: int
    ) -> None:
        """`prefetch`: micro-batches to prepare in advance. Raises InputError without DALI or a GPU."""
        self._dali = _import_dali()
        self._samples, self._order = samples, order
        self._rank, self._ranks, self._micro_batch, self._prefetch = rank, ranks, micro_batch, prefetch
        self._reusable: tuple[tuple[int, int], Batches] | None = None
        self._remaining = 0  # micro-batches of the last call that were not read

    def batches(self, consumed: int, number: int | None = None) -> Batches:
        """Yield `number` micro-batches from the sample `consumed` on; None: endless."""
        if number is None:
            return self._run(self._inputs(consumed, count()))
        return self._repeatable(consumed, number)

    def close(self) -> None:
        """Release the pipeline and files."""
        self._reusable = None
        self._samples.close()

    def _repeatable(self, consumed: int, number: int) -> Batches:
        """Use one cyclic pipeline for all calls: a new pipeline costs GPU memory and time."""
        if self._reusable is None or self._reusable[0] != (consumed, number) or self._remaining:
            self._reusable = (consumed, number), self._run(self._inputs(consumed, cycle(range(number))))
        _, run = self._reusable
        for self._remaining in reversed(range(number)):
            yield next(run)

    def _run(self, inputs: Iterator[tuple[Any, ...]]) -> Batches:
        pipeline = self._create_pipeline(inputs)
        pipeline.build()
        while True:
            pixels, labels = pipeline.run()
            yield self._as_tensor(pixels.as_tensor()), self._as_tensor(labels.as_tensor()).flatten()

    def _inputs(self, consumed: int, numbers: Iterator[int]) -> Iterator[tuple[Any, ...]]:
        """Yield the inputs of each micro-batch: files, labels, crops, flips.

        A crop is (top, left) and (height, width), as fractions of the image size.
        """
        for number in numbers:
            positions = positions_of_rank(consumed, self._rank, self._ranks, self._micro_batch, number)
            files, labels = self._samples.read_encoded(*self._order.locate(positions))
            counters = np.arange(positions.start, positions.stop, positions.step)[:, None]
            draws = uniform(random_bits(self._samples.seed, AUGMENTATION, counters, np.arange(DRAWS_PER_IMAGE)))
            content = [np.frombuffer(file, dtype=np.uint8) for file in files]
            crops = [self._crop(file, image_draws) for file, image_draws in zip(content, draws, strict=True)]
            mirror = [np.array(self._samples.augment and is_flipped(row), dtype=np.int32) for row in draws]
            anchors, shapes = [anchor for anchor, _ in crops], [shape for _, shape in crops]
            yield content, [np.array([label]) for label in labels], anchors, shapes, mirror

    def _crop(self, file: Any, draws: Any) -> tuple[Any, Any]:
        from PIL import Image  # a dependency of torchvision; it reads the size from the file header

        with Image.open(io.BytesIO(file)) as image:
            width, height = image.size
        if self._samples.augment:
            *anchor, rows, columns = random_resized_crop(height, width, draws[1:])
        else:
            rows = columns = max(1, round(min(height, width) / RESIZE))
            anchor = [(height - rows) // 2, (width - columns) // 2]
        size = np.array([height, width], dtype=np.float32)
        return np.array(anchor, dtype=np.float32) / size, np.array([rows, columns], dtype=np.float32) / size

    def _create_pipeline(self, inputs: Iterator[tuple[Any, ...]]) -> Any:
        fn, types = self._dali.fn, self._dali.types
        pipeline = self._dali.Pipeline(
            batch_size=self._micro_batch,
            num_threads=_CPU_THREADS,
            device_id=torch.cuda.current_device(),
            prefetch_queue_depth=self._prefetch,
        )
        with pipeline:
            files, labels, anchors, shapes, mirror = fn.external_source(source=inputs, num_outputs=5, batch=True)
            decoded = fn.decoders.image_slice(
                files,
                anchors,
                shapes,
                device="mixed",
                output_type=types.RGB,
                axis_names="HW",
                adjust_orientation=False,  # Pillow does not rotate images by their EXIF data
            )
            resized = fn.resize(decoded, size=[self._samples.size, self._samples.size], antialias=True)
            pixels = fn.crop_mirror_normalize(
                resized,
                mirror=mirror,
                mean=[255 * value for value in MEAN],
                std=[255 * value for value in STD],
                dtype=types.FLOAT,
                output_layout="CHW",
            )
            pipeline.set_outputs(pixels, labels.gpu())
        return pipeline

    def _as_tensor(self, output: Any) -> torch.Tensor:
        types = self._dali.types
        dtype = {types.FLOAT: torch.float32, types.INT64: torch.int64}[output.dtype]
        tensor = torch.empty(output.shape(), dtype=dtype, device="cuda")
        self._dali.plugin.pytorch.feed_ndarray(output, tensor, cuda_stream=torch.cuda.current_stream())
        torch.cuda.current_stream().synchronize()  # the pipeline reuses its buffer
        return tensor
