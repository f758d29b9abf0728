"""Where the samples of a WebDataset tar shard lie in it: a table made once, kept beside the shard in the cache."""

import os
import tarfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trainer.data.cache import Cache
from trainyard.models.dataset import Shard

ENTRY = np.dtype([("offset", np.int64), ("size", np.int64), ("label", np.int64)])
Entries = npt.NDArray[np.void]
_IMAGES = ("jpg", "jpeg", "png")


def entries(shard: Shard, cache: Cache, classes: int) -> Entries:
    """Place, size in bytes, and label of each image of the shard, which is open.

    Raises OSError, with the shard named, for one that is not what trainyard.models.dataset.ImageDataset says.
    """
    kept = cache.beside(shard, "entries.npy")
    try:
        found: Entries = np.load(kept)
        if found.dtype == ENTRY and len(found) == shard.count:
            return found
    except (OSError, ValueError, EOFError):
        pass  # not made yet, or cut short
    name = cache.path(shard)
    try:
        found = _read(name, classes)
    except (tarfile.TarError, ValueError) as error:
        raise OSError(f"{cache.name_of(shard)} is no shard of images: {error}") from error
    if len(found) != shard.count:
        raise OSError(f"{cache.name_of(shard)} holds {len(found)} images, its index says {shard.count}")
    partial = kept.with_name(f"{kept.name}.{os.getpid()}")
    with partial.open("wb") as stream:
        np.save(stream, found)
    partial.rename(kept)
    return found


def _read(path: Path, classes: int) -> Entries:
    """Members with one name up to the first dot of its last part are one sample, as WebDataset has it."""
    images: dict[str, tuple[int, int]] = {}
    labels: dict[str, int] = {}
    with tarfile.open(path, "r:") as archive:
        for member in archive:
            folder, slash, file = member.name.rpartition("/")
            stem, _, extension = file.partition(".")
            if not member.isfile() or not stem:
                continue
            key = folder + slash + stem
            if extension.lower() in _IMAGES:
                images[key] = (member.offset_data, member.size)
            elif extension == "cls":
                stream = archive.extractfile(member)
                assert stream is not None, "a file's content"
                labels[key] = _label(stream.read(), member.name, classes)
    alone = sorted(images.keys() ^ labels.keys())
    if alone:
        raise ValueError(f"{alone[0]} has not both an image and a class")
    return np.array([(*place, labels[key]) for key, place in images.items()], dtype=ENTRY)


def _label(content: bytes, name: str, classes: int) -> int:
    text = content.strip()
    if not text.isdigit() or int(text) >= classes:
        raise ValueError(f"{name} says class {text.decode(errors='replace')!r}, and there are {classes}")
    return int(text)
