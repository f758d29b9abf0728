"""The built-in corpus: the source files of Python's standard library as bytes, real text on every machine."""

import hashlib
import json
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from trainyard.aws.s3 import Bucket
from trainyard.config import CONFIG_KEY
from trainyard.errors import InputError, Problem
from trainyard.models.dataset import INDEX, Shard, TokenDataset

SHARD_BYTES = 4 << 20
MASK = 255  # no byte of UTF-8 text
VALIDATION_INTERVAL = 20  # every twentieth file is for validation
_EXCLUDED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "idlelib", "__pycache__"}


def list_source_files(folder: Path) -> Iterator[Path]:
    """Yield the library's modules in an order that mixes packages and is the same on every machine."""
    files = [file for file in folder.rglob("*.py") if not _EXCLUDED_FOLDERS & set(file.relative_to(folder).parts)]
    return iter(sorted(files, key=lambda file: _hash_name(str(file.relative_to(folder)))))


def _hash_name(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def split_into_shards(files: list[Path]) -> Iterator[bytes]:
    """Yield the concatenated files in shards of SHARD_BYTES; the last shard is shorter."""
    buffer = bytearray()
    for file in files:
        buffer += file.read_bytes() + b"\n"
        while len(buffer) >= SHARD_BYTES:
            yield bytes(buffer[:SHARD_BYTES])
            del buffer[:SHARD_BYTES]
    if buffer:
        yield bytes(buffer)


def upload_corpus(
    bucket: Bucket, prefix: str, report: Callable[[str], None], folder: Path | None = None
) -> TokenDataset:
    """Upload the corpus below a prefix, which ends with a slash.

    The index is last, so that an interrupted upload is not a dataset. `folder` is a standard library, by default that
    of this Python; `report` receives the progress as text. Raises InputError when the folder has no source files.
    """
    folder = folder or Path(sysconfig.get_path("stdlib"))
    files = list(list_source_files(folder))
    if not files:
        problem = Problem(
            f"{CONFIG_KEY}.job.builtin_corpus",
            True,
            f"this Python has no source files of its standard library in {folder}",
            "Use a Python that has them, or upload a dataset",
            "corpus_source_missing",
        )
        raise InputError([problem])
    start_time, uploaded_bytes = time.monotonic(), 0
    name = prefix.rstrip("/").rpartition("/")[2]
    splits: dict[str, list[Shard]] = {"train": [], "validation": []}
    for split in splits:
        is_train = split == "train"
        split_files = [file for number, file in enumerate(files) if (number % VALIDATION_INTERVAL != 0) == is_train]
        for number, content in enumerate(split_into_shards(split_files)):
            shard = Shard(
                key=f"{split}-{number:05d}.bin",
                count=len(content),
                bytes=len(content),
                sha256=hashlib.sha256(content).hexdigest(),
            )
            bucket.write(prefix + shard.key, content)
            splits[split].append(shard)
            uploaded_bytes += len(content)
            report(f"{name}: {uploaded_bytes / 1e6:.1f} MB uploaded")
    index = TokenDataset(
        kind="tokens",
        name=name,
        source=f"sources of Python {sysconfig.get_python_version()}'s standard library, {len(files)} files",
        mask=MASK,
        train=tuple(splits["train"]),
        validation=tuple(splits["validation"]),
    )
    bucket.write(prefix + INDEX, json.dumps(index.model_dump(mode="json"), indent=1).encode())
    shard_count = len(splits["train"]) + len(splits["validation"])
    report(f"{name}: {uploaded_bytes / 1e6:.1f} MB in {shard_count} shards, {time.monotonic() - start_time:.1f} s")
    return index
