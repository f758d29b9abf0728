"""Builds a dataset from parts: resumes completed parts, merges the held-out samples, and writes the index last."""

import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainer.prepare.partitioning import Part, PartResult
from trainer.prepare.progress import ProgressDisplay
from trainer.prepare.work_folder import WorkFolder, default_work_path, held_out_path
from trainer.prepare.worker_pool import ShardBuilder, build_parts
from trainer.storage import Storage, open_storage
from trainyard.base import StrictModel
from trainyard.errors import InputError, Problem
from trainyard.models.dataset import DATASET, INDEX, Dataset, ImageDataset, Shard, TokenDataset

_PROBE = ".prepare"
CreateIndex = Callable[[list[Shard], list[Shard], int], TokenDataset | ImageDataset]
Merge = Callable[[Iterable[Path]], Iterator[tuple[Path, int]]]  # yields new files, with the count of each
log = logging.getLogger(__name__)


class Result(StrictModel):
    """The output of `--json`."""

    target: str
    dataset: Dataset
    samples: int
    empty_documents: int  # documents without text, which are skipped
    failed: tuple[str, ...]
    truncated: int  # conversations that are longer than a row
    bytes: int
    seconds: float
    resumed_shards: int  # shards of an earlier, interrupted run


@dataclass(frozen=True, kw_only=True)
class Request:
    """Target of the dataset, and the options common to text and images."""

    target: str
    name: str
    held_out: float  # share of the samples, between 0 and 1
    workers: int
    work: Path | None = None
    replace: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.held_out < 1:
            reason = "leaves nothing to hold out" if self.held_out <= 0 else "leaves nothing to train on"
            fix = "Use a share between 0 and 1"
            raise InputError([Problem("--held-out", self.held_out, reason, fix, "split_empty")])

    @contextmanager
    def open_work_folder(self, settings: Mapping[str, Any]) -> Iterator[WorkFolder]:
        """Check the target, then open the work folder. Raises InputError if the target can't be written."""
        storage = open_storage(self.target, "--target")
        _require_writable(storage, self.replace)
        common = {"--target": self.target, "--name": self.name, "--held-out": self.held_out}
        work = WorkFolder(self.work or default_work_path(storage.uri), common | dict(settings))
        log.info(work.status)
        try:
            yield work
        finally:
            work.close()


def build_dataset(
    request: Request,
    work: WorkFolder,
    parts: Sequence[Part[Any]],
    builder: ShardBuilder,
    merge: Merge,
    suffix: str,
    extra_files: Mapping[str, Path],
    create_index: CreateIndex,
    check: Callable[[list[str]], None] = lambda failed: None,
) -> Result:
    """Build the parts that are not complete, then the dataset of all parts.

    `merge` merges held-out files; `suffix` is that of shards; `extra_files` are uploaded under their keys. `check`
    raises InputError if too many samples failed; it is called before the first part and after each part.
    """
    start = time.monotonic()
    storage = open_storage(request.target, "--target")
    results = {
        part.number: result
        for part in parts
        if (result := work.read_result(part.fingerprint)) and _is_uploaded(result, storage)
    }
    resumed = len(results)
    if resumed:
        log.info("%d of %d shards are already complete", resumed, len(parts))
    total = sum(part.size for part in parts)
    remaining = [part for part in parts if part.number not in results]
    check(_failed(results.values()))
    workers = min(request.workers, max(1, len(remaining)))
    with ProgressDisplay(request.name, total, total - sum(part.size for part in remaining)) as display:
        for part, result in build_parts(builder, remaining, work.path, workers, display.advance):
            results[part.number] = result
            check(_failed(results.values()))
    ordered = [results[part.number] for part in parts]
    held_out_files = (held_out_path(work.path, part.fingerprint) for part in parts)
    validation: list[Shard] = []
    for number, (file, count) in enumerate(merge(held_out_files)):
        if shard := upload_shard(file, storage, f"validation-{number:05d}", suffix, count):
            validation.append(shard)
    train = [result.shard for result in ordered if result.shard]
    samples = sum(result.samples for result in ordered)
    _require_both_splits(train, validation, samples, request.held_out)
    for key, file in extra_files.items():
        storage.upload(file, key)
    dataset = create_index(train, validation, samples)
    obsolete = _replaced_keys(storage) | work.obsolete_keys
    storage.write(INDEX, dataset.model_dump_json(indent=1).encode())
    for key in sorted(obsolete - {shard.key for shard in train + validation}):
        storage.delete(key)
    work.delete()
    return Result(
        target=storage.uri,
        dataset=dataset,
        samples=samples,
        empty_documents=sum(result.empty_documents for result in ordered),
        failed=tuple(_failed(ordered)),
        truncated=sum(result.truncated for result in ordered),
        bytes=total,
        seconds=round(time.monotonic() - start, 3),
        resumed_shards=resumed,
    )


def _failed(results: Iterable[PartResult]) -> list[str]:
    return [message for result in results for message in result.failed]


def upload_shard(file: Path, storage: Storage, name: str, suffix: str, count: int) -> Shard | None:
    """Move a file with `count` tokens or images to the target, with a hash of its content in its name.

    Returns None, without an upload, if the count is 0.
    """
    if not count:
        file.unlink()
        return None
    with file.open("rb") as stream:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
    shard = Shard(key=f"{name}-{sha256[:12]}{suffix}", count=count, bytes=file.stat().st_size, sha256=sha256)
    storage.upload(file, shard.key)
    file.unlink()
    return shard


def _replaced_keys(storage: Storage) -> set[str]:
    """Return the keys of the shards of the dataset that is replaced."""
    content = storage.read(INDEX)
    try:
        replaced = DATASET.validate_json(content or b"")
    except ValidationError:
        return set()
    return {shard.key for shard in replaced.train + replaced.validation}


def _is_uploaded(result: PartResult, storage: Storage) -> bool:
    return result.shard is None or storage.exists(result.shard.key)


def _require_writable(storage: Storage, replace: bool) -> None:
    """Raise InputError unless the target exists, can be written, and has no dataset or `replace` is set."""
    storage.require(create=True)
    try:
        storage.write(_PROBE, b"")
        storage.delete(_PROBE)
        has_dataset = storage.exists(INDEX)
    except OSError as error:
        raise _target_error(
            storage, f"can't be written: {error}", "Name another, or request write access", "target_not_writable"
        ) from None
    if has_dataset and not replace:
        raise _target_error(
            storage,
            f"holds a dataset ({INDEX}) already",
            "Name another, or replace it with --replace",
            "target_has_dataset",
        )


def _target_error(storage: Storage, reason: str, fix: str, code: str) -> InputError:
    return InputError([Problem("--target", storage.uri, reason, fix, code)])


def _require_both_splits(train: list[Shard], validation: list[Shard], samples: int, held_out: float) -> None:
    if not samples:
        reason = "holds nothing: every document is empty"
        raise InputError([Problem("SOURCE", None, reason, "Name another", "source_empty")])
    if samples == 1:
        reason = "nothing is left to train on once it is held out"
        fix = (
            "Split a text file into smaller documents, such as by --document-kib 16 --held-out 0.1, or add documents "
            "or images"
        )
        raise InputError([Problem("SOURCE", "one document, or image", reason, fix, "training_split_empty")])
    if not validation or not train:
        split, action = ("held out", "Raise") if not validation else ("left to train on", "Lower")
        reason = f"of {samples} documents, or images, none is {split}"
        better = min(0.5, 5 / samples)
        example = f", such as to {better:.2g}" if not validation and better > held_out else ""
        fix = (
            f"{action} it{example}, or add documents or images; --document-kib splits text files into smaller documents"
        )
        raise InputError([Problem("--held-out", held_out, reason, fix, "split_empty")])
