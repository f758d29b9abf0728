"""Images from tar shards: decoding, and augmentation by their position."""

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.trainer.data.conftest import IMAGES, config, write_images, write_shard
from trainer.data import open_data
from trainer.data.cache import Cache
from trainer.data.images import ImageSamples, random_resized_crop
from trainer.data.tar import read_entries
from trainer.settings import Environment

CreateEnvironment = Callable[..., Environment]


def held_out(folder: Path, tmp_path: Path) -> ImageSamples:
    index = write_images(folder)
    return ImageSamples(
        index, index.train, Cache(str(folder), "DATA_URI", tmp_path / "cache"), 32, augment=False, seed=1
    )


def test_batch_has_pixels_and_classes(environment_for: CreateEnvironment, tmp_path: Path) -> None:
    write_images(tmp_path / "data")
    data = open_data(config(model=IMAGES, micro_batch_size=8), environment_for(tmp_path / "data"), rank=0, ranks=1)
    pixels, labels = next(data.train_batches(0))
    data.close()
    assert (pixels.shape, pixels.dtype) == ((8, 3, 32, 32), torch.uint8)
    assert sorted(labels.tolist()) == sorted(number % 3 for number in range(8))


def test_image_matches_its_label_and_keeps_its_mean_color(tmp_path: Path) -> None:
    samples = held_out(tmp_path / "data", tmp_path)
    number = 1  # a PNG, which is lossless
    pixels, labels = samples.read(np.array([0]), np.array([number]), np.array([0]))
    assert labels.tolist() == [number]
    expected = np.random.default_rng(number).integers(0, 255, (41, 60, 3)).astype(np.float64) / 255
    assert abs(float((pixels[0].double() / 255).mean()) - expected.mean()) < 0.03


def test_augmentation_depends_on_the_position_only(tmp_path: Path) -> None:
    index = write_images(tmp_path / "data")
    cache = Cache(str(tmp_path / "data"), "DATA_URI", tmp_path / "cache")
    samples = ImageSamples(index, index.train, cache, 32, augment=True, seed=1)
    zeros = np.zeros(6, dtype=np.int64)
    batch = samples.read(zeros, zeros, np.arange(6))[0]
    single = torch.cat([samples.read(zeros[:1], zeros[:1], np.array([position]))[0] for position in range(6)])
    assert torch.equal(batch, single)
    assert len({float(image.sum()) for image in batch}) == 6


@pytest.mark.parametrize(("height", "width"), [(40, 60), (500, 333), (1000, 10), (1, 1)])
def test_crop_is_inside_the_image(height: int, width: int) -> None:
    draws = np.random.default_rng(0).random((200, 40))
    areas = []
    for row in draws:
        top, start, rows, columns = random_resized_crop(height, width, row)
        assert 0 <= top <= top + rows <= height
        assert 0 <= start <= start + columns <= width
        assert min(rows, columns) > 0
        areas.append(rows * columns / (height * width))
    if min(height, width) > 30:
        assert min(areas) < 0.2
        assert max(areas) > 0.8


def test_table_of_a_shard_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = write_images(tmp_path / "data")
    cache = Cache(str(tmp_path / "data"), "DATA_URI", tmp_path / "cache")
    first = read_entries(index.train[0], cache, 3)
    monkeypatch.setattr(tarfile, "open", None)
    assert np.array_equal(read_entries(index.train[0], cache, 3), first)
    cache.sidecar_path(index.train[0], "entries.npy").write_bytes(b"cut")
    with pytest.raises(TypeError):  # the truncated table is built again
        read_entries(index.train[0], cache, 3)


@pytest.mark.parametrize("label", [b"7", b"dog"])
def test_invalid_class_raises_with_the_shard(tmp_path: Path, label: bytes) -> None:
    index = write_images(tmp_path / "data", label=label)
    cache = Cache(str(tmp_path / "data"), "DATA_URI", tmp_path / "cache")
    with pytest.raises(OSError, match=r"0\.tar is no shard of images: .*\.cls has class"):
        read_entries(index.train[0], cache, 3)


def tar_of(**members: bytes) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name.replace("_", "."))
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


@pytest.mark.parametrize(
    ("content", "count", "reason"),
    [
        (tar_of(a_jpg=b"x", a_cls=b"1", b_jpg=b"x"), 2, "b has an image without a class or"),
        (tar_of(a_jpg=b"x", a_cls=b"1"), 2, "holds 1 images, its index has 2"),
        (b"no tar" * 200, 1, "is no shard of images"),
    ],
)
def test_tar_that_is_no_shard_raises_with_the_reason(tmp_path: Path, content: bytes, count: int, reason: str) -> None:
    shard = write_shard(tmp_path, "0.tar", content, count)
    with pytest.raises(OSError, match=reason):
        read_entries(shard, Cache(str(tmp_path), "DATA_URI", tmp_path / "cache"), 3)


def test_image_that_cannot_be_decoded_raises_with_its_index(tmp_path: Path) -> None:
    index = write_images(tmp_path / "data")
    shard = write_shard(tmp_path / "data", "x.tar", tar_of(a_jpg=b"no image", a_cls=b"1"), 1)
    cache = Cache(str(tmp_path / "data"), "DATA_URI", tmp_path / "cache")
    samples = ImageSamples(index, [shard], cache, 32, augment=False, seed=1)
    with pytest.raises(OSError, match=r"x\.tar: image 0 can't be decoded"):
        samples.read(np.array([0]), np.array([0]), np.array([0]))
