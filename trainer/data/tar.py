"""Locations of the samples in a WebDataset tar shard: a table that is built once and kept next to the cached shard."""

import os
import tarfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trainer.data.cache import Cache
from trainyard.models.dataset import Shard

ENTRY = np.dtype([("offset", np.int64), ("size", np.int64), ("label", np.int64)])
Entries = npt.NDArray[np.void]
_IMAGE_SUFFIXES = ("jpg", "jpeg", "png")


def read_entries(shard: Shard, cache: Cache, classes: int) -> Entries:
    """Return offset, size in bytes and label of each image of a shard. The shard must be open.

    Raises OSError with the shard's URI if it is not as trainyard.models.dataset.ImageDataset describes.
    """
    table = cache.sidecar_path(shard, "entries.npy")
    try:
        entries: Entries = np.load(table)
        if entries.dtype == ENTRY and len(entries) == shard.count:
            return entries
    except (OSError, ValueError, EOFError):
        pass  # the table does not exist or is truncated
    try:
        entries = _read_tar(cache.local_path(shard), classes)
    except (tarfile.TarError, ValueError) as error:
        raise OSError(f"{cache.shard_uri(shard)} is no shard of images: {error}") from error
    if len(entries) != shard.count:
        raise OSError(f"{cache.shard_uri(shard)} holds {len(entries)} images, its index has {shard.count}")
    partial = table.with_name(f"{table.name}.{os.getpid()}")
    with partial.open("wb") as stream:
        np.save(stream, entries)
    partial.rename(table)
    return entries


def _read_tar(path: Path, classes: int) -> Entries:
    """Read the table. Members with one name up to the first dot of the file name are one sample, as in WebDataset."""
    images: dict[str, tuple[int, int]] = {}
    labels: dict[str, int] = {}
    with tarfile.open(path, "r:") as archive:
        for member in archive:
            folder, slash, file = member.name.rpartition("/")
            stem, _, extension = file.partition(".")
            if not member.isfile() or not stem:
                continue
            key = folder + slash + stem
            if extension.lower() in _IMAGE_SUFFIXES:
                images[key] = (member.offset_data, member.size)
            elif extension == "cls":
                stream = archive.extractfile(member)
                assert stream is not None, "a regular file has content"
                labels[key] = _parse_label(stream.read(), member.name, classes)
    incomplete = sorted(images.keys() ^ labels.keys())
    if incomplete:
        raise ValueError(f"{incomplete[0]} has an image without a class or a class without an image")
    return np.array([(*location, labels[key]) for key, location in images.items()], dtype=ENTRY)


def _parse_label(content: bytes, name: str, classes: int) -> int:
    text = content.strip()
    if not text.isdigit() or int(text) >= classes:
        raise ValueError(f"{name} has class {text.decode(errors='replace')!r}, and the dataset has {classes} classes")
    return int(text)
