"""Small datasets of every kind, their configurations and environments."""

import hashlib
import io
import tarfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from trainer.settings import Environment
from trainer.storage import S3Storage
from trainyard.config.training import TrainerConfig
from trainyard.models.dataset import INDEX, ImageDataset, Shard, TokenDataset

LENGTH = 8


def write_shard(folder: Path, key: str, content: bytes, count: int) -> Shard:
    """Write a shard's file and return its entry of the index."""
    (folder / key).write_bytes(content)
    return Shard(key=key, count=count, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def write_tokens(folder: Path, sizes: Sequence[int] = (171, 90, 333, 20), **changes: Any) -> TokenDataset:
    """Write shards with these numbers of tokens; the last shard is held out. All tokens differ, to identify samples."""
    folder.mkdir(exist_ok=True)
    ends = np.cumsum(sizes)
    dtype = changes.setdefault("dtype", "uint16")
    pieces = [np.arange(end - size, end).astype(dtype).tobytes() for end, size in zip(ends, sizes, strict=True)]
    shards = [
        write_shard(folder, f"{n}.bin", piece, size) for n, (piece, size) in enumerate(zip(pieces, sizes, strict=True))
    ]
    index = TokenDataset(
        name="counted",
        source="numbers",
        train=tuple(shards[:-1]),
        validation=tuple(shards[-1:]),
        **{"vocabulary": int(ends[-1])} | changes,
    )
    (folder / INDEX).write_text(index.model_dump_json())
    return index


def write_images(folder: Path, sizes: Sequence[int] = (5, 3, 4), **changes: Any) -> ImageDataset:
    """Write shards with these numbers of different images of class number % 3; the last shard is held out."""
    folder.mkdir(exist_ok=True)
    shards, number = [], 0
    for n, size in enumerate(sizes):
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as archive:
            for _ in range(size):
                picture = io.BytesIO()
                shape = (40 + number, 60, 3)
                pixels = np.random.default_rng(number).integers(0, 255, shape).astype(np.uint8)
                Image.fromarray(pixels).save(picture, "PNG" if number % 2 else "JPEG")
                label = changes.get("label", b"%d" % (number % 3))
                for name, content in (("png" if number % 2 else "jpg", picture.getvalue()), ("cls", label)):
                    member = tarfile.TarInfo(f"{number:06}.{name}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
                number += 1
        shards.append(write_shard(folder, f"{n}.tar", stream.getvalue(), size))
    index = ImageDataset(
        kind="images",
        name="noise",
        source="a generator",
        classes=("a", "b", "c"),
        train=tuple(shards[:-1]),
        validation=tuple(shards[-1:]),
    )
    (folder / INDEX).write_text(index.model_dump_json())
    return index


MODEL = {
    "dim": 8,
    "layers": 1,
    "heads": 1,
    "kv_heads": 1,
    "intermediate_size": 8,
    "vocabulary": 1000,
    "sequence_length": LENGTH,
}
MASKED = {"kind": "hugging_face", "task": "masked", "config": {"model_type": "bert"}, "sequence_length": LENGTH}
IMAGES = {"kind": "images", "architecture": "resnet18", "classes": 3, "image_size": 32}


def config(**changes: Any) -> TrainerConfig:
    data = {"streams": 4, "shuffle_block_samples": 8, **changes.pop("data", {})}
    settings = {"model": MODEL, "batch_size": 24, "micro_batch_size": 1, "data": data, "evaluation": {"batches": 2}}
    return TrainerConfig.model_validate(settings | changes)


@pytest.fixture
def environment_for(alone: Environment, tmp_path: Path) -> Callable[..., Environment]:
    """Creates the environment of a job with the dataset at a URI, and with a separate cache."""

    def create(uri: object, **changes: Any) -> Environment:
        return replace(alone, data_uri=str(uri), cache_dir=tmp_path / "cache", **changes)

    return create


@pytest.fixture
def uploaded(s3: Any, request: pytest.FixtureRequest) -> Callable[[Path], str]:
    """Uploads a folder to a separate prefix and returns its URI."""
    prefix = f"{request.node.name}/"

    def upload(folder: Path) -> str:
        for file in folder.iterdir():
            s3.upload_file(str(file), "runs", prefix + file.name)
        return f"s3://runs/{prefix}"

    return upload


@pytest.fixture
def downloads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Keys of the shards that are downloaded from S3, in order, with the names of the threads."""
    records: list[tuple[str, str]] = []
    original = S3Storage.download

    def download(self: S3Storage, key: str, target: Path) -> None:
        records.append((key, threading.current_thread().name))
        original(self, key, target)

    monkeypatch.setattr(S3Storage, "download", download)
    return records
