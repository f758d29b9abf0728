"""The built-in corpus: the sources of Python's standard library as bytes, real text on every machine."""

import hashlib
import json
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from trainyard.aws.s3 import Bucket
from trainyard.base import CONFIG_KEY, InputError, Problem
from trainyard.models.dataset import INDEX, Shard, TokenDataset
from trainyard.models.layout import dataset_prefix

SHARD_BYTES = 4 << 20
VALIDATION_SHARE = 20  # one file in twenty is held out
_LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idlelib", "__pycache__"}


def sources(folder: Path) -> Iterator[Path]:
    """The library's modules in an order that mixes packages and is the same everywhere."""
    files = [file for file in folder.rglob("*.py") if not _LEFT_OUT & set(file.relative_to(folder).parts)]
    return iter(sorted(files, key=lambda file: _order(str(file.relative_to(folder)))))


def _order(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def shards(files: list[Path]) -> Iterator[bytes]:
    """The files' bytes, one after the other, in pieces of SHARD_BYTES; the last one is shorter."""
    buffer = bytearray()
    for file in files:
        buffer += file.read_bytes() + b"\n"
        while len(buffer) >= SHARD_BYTES:
            yield bytes(buffer[:SHARD_BYTES])
            del buffer[:SHARD_BYTES]
    if buffer:
        yield bytes(buffer)


def prepare(bucket: Bucket, name: str, say: Callable[[str], None], folder: Path | None = None) -> TokenDataset:
    """Upload the corpus as dataset `name`; the index goes last, so that a cut upload does not count.

    `folder` is the library's, by default this Python's own. Raises InputError where the sources are not there.
    """
    folder = folder or Path(sysconfig.get_path("stdlib"))
    files = list(sources(folder))
    if not files:
        raise InputError(
            [
                Problem(
                    key=f"{CONFIG_KEY}.job.builtin_corpus",
                    value=True,
                    why=f"this Python has no library sources in {folder}",
                    fix="Run with a Python that has them, or upload a dataset of your own",
                )
            ]
        )
    began, sent = time.monotonic(), 0
    prefix = dataset_prefix(name)
    splits: dict[str, list[Shard]] = {"train": [], "validation": []}
    for split in splits:
        chosen = [file for number, file in enumerate(files) if (number % VALIDATION_SHARE == 0) == (split != "train")]
        for number, content in enumerate(shards(chosen)):
            shard = Shard(
                key=f"{split}-{number:05d}.bin",
                count=len(content),
                bytes=len(content),
                sha256=hashlib.sha256(content).hexdigest(),
            )
            bucket.write(prefix + shard.key, content)
            splits[split].append(shard)
            sent += len(content)
            say(f"{name}: {sent / 1e6:.1f} MB uploaded")
    index = TokenDataset(
        kind="tokens",
        name=name,
        source=f"sources of Python {sysconfig.get_python_version()}'s standard library, {len(files)} files",
        train=tuple(splits["train"]),
        validation=tuple(splits["validation"]),
    )
    bucket.write(prefix + INDEX, json.dumps(index.model_dump(mode="json"), indent=1).encode())
    count = len(splits["train"]) + len(splits["validation"])
    say(f"{name}: {sent / 1e6:.1f} MB in {count} shards, {time.monotonic() - began:.1f} s")
    return index
