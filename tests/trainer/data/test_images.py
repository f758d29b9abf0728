"""Images from tar shards: decoded as they are, augmented by their position."""

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.trainer.data.conftest import PICTURES, config, shard, write_images
from trainer.data import open_data
from trainer.data.cache import Cache
from trainer.data.images import DEVIATION, MEAN, ImageSamples, crop
from trainer.data.tar import entries
from trainer.settings import Environment

At = Callable[..., Environment]


def held_out(folder: Path, tmp_path: Path) -> ImageSamples:
    index = write_images(folder)
    return ImageSamples(
        index, index.train, Cache(str(folder), "DATA_URI", tmp_path / "cache"), 32, augment=False, seed=1
    )


def test_a_batch_is_pixels_and_classes(at: At, tmp_path: Path) -> None:
    write_images(tmp_path / "data")
    data = open_data(config(model=PICTURES, micro_batch_size=8), at(tmp_path / "data"), rank=0, ranks=1)
    pixels, labels = next(data.train(0))
    data.close()
    assert (pixels.shape, pixels.dtype) == ((8, 3, 32, 32), torch.float32)
    assert sorted(labels.tolist()) == sorted(number % 3 for number in range(8))


def test_an_image_is_the_one_of_its_label_and_its_colours_are_kept(tmp_path: Path) -> None:
    samples = held_out(tmp_path / "data", tmp_path)
    number = 1  # a PNG: nothing is lost
    pixels, labels = samples.read(np.array([0]), np.array([number]), np.array([0]))
    assert labels.tolist() == [number]
    whole = np.random.default_rng(number).integers(0, 255, (41, 60, 3)).astype(np.float64) / 255
    mean = (pixels[0].double() * torch.tensor(DEVIATION)[:, None, None] + torch.tensor(MEAN)[:, None, None]).mean()
    assert abs(float(mean) - whole.mean()) < 0.03


def test_an_image_is_augmented_by_its_position_alone(tmp_path: Path) -> None:
    index = write_images(tmp_path / "data")
    cache = Cache(str(tmp_path / "data"), "DATA_URI", tmp_path / "cache")
    samples = ImageSamples(index, index.train, cache, 32, augment=True, seed=1)
    zeros = np.zeros(6, dtype=np.int64)
    together = samples.read(zeros, zeros, np.arange(6))[0]
    alone = torch.cat([samples.read(zeros[:1], zeros[:1], np.array([at]))[0] for at in range(6)])
    assert torch.equal(together, alone)
    assert len({float(one.sum()) for one in together}) == 6


@pytest.mark.parametrize(("height", "width"), [(40, 60), (500, 333), (1000, 10), (1, 1)])
def test_a_crop_lies_within_its_image(height: int, width: int) -> None:
    draws = np.random.default_rng(0).random((200, 40))
    areas = []
    for each in draws:
        top, left, rows, columns = crop(height, width, each)
        assert 0 <= top <= top + rows <= height
        assert 0 <= left <= left + columns <= width
        assert min(rows, columns) > 0
        areas.append(rows * columns / (height * width))
    if min(height, width) > 30:
        assert min(areas) < 0.2
        assert max(areas) > 0.8


def test_a_shards_table_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = write_images(tmp_path / "data")
    cache = Cache(str(tmp_path / "data"), "DATA_URI", tmp_path / "cache")
    first = entries(index.train[0], cache, 3)
    monkeypatch.setattr(tarfile, "open", None)
    assert np.array_equal(entries(index.train[0], cache, 3), first)
    cache.beside(index.train[0], "entries.npy").write_bytes(b"cut")
    with pytest.raises(TypeError):  # the spoilt one is made again
        entries(index.train[0], cache, 3)


@pytest.mark.parametrize("label", [b"7", b"dog"])
def test_a_class_that_is_none_is_told_with_the_shard(tmp_path: Path, label: bytes) -> None:
    index = write_images(tmp_path / "data", label=label)
    cache = Cache(str(tmp_path / "data"), "DATA_URI", tmp_path / "cache")
    with pytest.raises(OSError, match=r"0\.tar is no shard of images: .*\.cls says class"):
        entries(index.train[0], cache, 3)


def tar_of(**members: bytes) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name.replace("_", "."))
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


@pytest.mark.parametrize(
    ("content", "count", "why"),
    [
        (tar_of(a_jpg=b"x", a_cls=b"1", b_jpg=b"x"), 2, "b has not both an image and a class"),
        (tar_of(a_jpg=b"x", a_cls=b"1"), 2, "holds 1 images, its index says 2"),
        (b"no tar" * 200, 1, "is no shard of images"),
    ],
)
def test_a_tar_that_is_no_shard_is_told(tmp_path: Path, content: bytes, count: int, why: str) -> None:
    one = shard(tmp_path, "0.tar", content, count)
    with pytest.raises(OSError, match=why):
        entries(one, Cache(str(tmp_path), "DATA_URI", tmp_path / "cache"), 3)


def test_an_image_that_cannot_be_decoded_is_told(tmp_path: Path) -> None:
    index = write_images(tmp_path / "data")
    one = shard(tmp_path / "data", "x.tar", tar_of(a_jpg=b"no image", a_cls=b"1"), 1)
    cache = Cache(str(tmp_path / "data"), "DATA_URI", tmp_path / "cache")
    samples = ImageSamples(index, [one], cache, 32, augment=False, seed=1)
    with pytest.raises(OSError, match=r"x\.tar: image 0 can't be decoded"):
        samples.read(np.array([0]), np.array([0]), np.array([0]))
