"""From parts to a dataset: what is done is not done again, what is held out is put together, the index goes last."""

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainer.prepare.parts import Made, Part
from trainer.prepare.pool import Maker, run
from trainer.prepare.progress import Display, say
from trainer.prepare.work import Work, default_folder, held_out_file
from trainer.storage import Storage, open_storage
from trainyard.base import Contract, InputError, Problem
from trainyard.models.dataset import DATASET, INDEX, Dataset, ImageDataset, Shard, TokenDataset

_PROBE = ".prepare"
Index = Callable[[list[Shard], list[Shard], int], TokenDataset | ImageDataset]
Merge = Callable[[Iterable[Path]], Iterator[tuple[Path, int]]]  # new files, and what each counts


class Result(Contract):
    """What `--json` prints."""

    target: str
    dataset: Dataset
    samples: int
    left_out: int
    failed: tuple[str, ...]
    bytes: int
    seconds: float
    continued: int  # shards that an earlier run had made


@dataclass(frozen=True, kw_only=True)
class Request:
    """Where the dataset goes, and how it is made."""

    target: str
    name: str
    held_out: float  # more than 0, and less than 1
    workers: int
    work: Path | None = None
    replace: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.held_out < 1:
            why = "leaves nothing to hold out" if self.held_out <= 0 else "leaves nothing to train on"
            fix = "Take a share between 0 and 1"
            raise InputError([Problem(key="--held-out", value=self.held_out, why=why, fix=fix)])

    @contextmanager
    def open(self, words: Mapping[str, Any]) -> Iterator[Work]:
        """The work folder, once the target is known to take shards. Raises InputError where it doesn't."""
        storage = open_storage(self.target, "--target")
        _require(storage, self.replace)
        common = {"--target": self.target, "--name": self.name, "--held-out": self.held_out}
        work = Work(self.work or default_folder(storage.uri), common | dict(words))
        say(work.said)
        try:
            yield work
        finally:
            work.close()


def build(
    request: Request,
    work: Work,
    parts: Sequence[Part[Any]],
    maker: Maker,
    merge: Merge,
    suffix: str,
    beside: Mapping[str, Path],
    index: Index,
    check: Callable[[list[str]], None] = lambda failed: None,
) -> Result:
    """Make the parts that are not made yet, then the dataset of all. `merge` puts held-out files together.

    `check` raises InputError where too many samples failed; it is asked before the first part and after each.
    """
    began = time.monotonic()
    storage = open_storage(request.target, "--target")
    made = {part.number: done for part in parts if (done := work.made(part.address)) and _is_there(done, storage)}
    continued = len(made)
    if continued:
        say(f"{continued} of {len(parts)} shards are there")
    total = sum(part.size for part in parts)
    left = [part for part in parts if part.number not in made]
    check(_failed(made.values()))
    with Display(request.name, total, total - sum(part.size for part in left)) as display:
        for part, done in run(maker, left, work.folder, min(request.workers, max(1, len(left))), display.advance):
            made[part.number] = done
            check(_failed(made.values()))
    all_made = [made[part.number] for part in parts]
    files = (held_out_file(work.folder, part.address) for part in parts)
    validation: list[Shard] = []
    for number, (file, count) in enumerate(merge(files)):
        if shard := upload(file, storage, f"validation-{number:05d}", suffix, count):
            validation.append(shard)
    train = [one.shard for one in all_made if one.shard]
    samples = sum(one.samples for one in all_made)
    _require_both(train, validation, samples, request.held_out)
    for key, file in beside.items():
        storage.upload(file, key)
    dataset = index(train, validation, samples)
    old = _old(storage) | work.abandoned
    storage.write(INDEX, dataset.model_dump_json(indent=1).encode())
    for key in sorted(old - {shard.key for shard in train + validation}):
        storage.delete(key)
    work.finish()
    return Result(
        target=storage.uri,
        dataset=dataset,
        samples=samples,
        left_out=sum(one.left_out for one in all_made),
        failed=tuple(_failed(all_made)),
        bytes=total,
        seconds=round(time.monotonic() - began, 3),
        continued=continued,
    )


def _failed(made: Iterable[Made]) -> list[str]:
    return [text for one in made for text in one.failed]


def upload(file: Path, storage: Storage, name: str, suffix: str, count: int) -> Shard | None:
    """Move a finished file of `count` tokens or images to the target, under a name that tells its content.

    None where it holds nothing.
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


def _old(storage: Storage) -> set[str]:
    """Shards of the dataset that is replaced."""
    content = storage.read(INDEX)
    try:
        old = DATASET.validate_json(content or b"")
    except ValidationError:
        return set()
    return {shard.key for shard in old.train + old.validation}


def _is_there(made: Made, storage: Storage) -> bool:
    return made.shard is None or storage.exists(made.shard.key)


def _require(storage: Storage, replace: bool) -> None:
    """The target is there, takes objects, and holds no dataset that someone trains on."""
    storage.require(make=True)
    try:
        storage.write(_PROBE, b"")
        storage.delete(_PROBE)
        taken = storage.exists(INDEX)
    except OSError as error:
        raise _target(storage, f"can't be written: {error}", "Name another, or ask for the right to write") from None
    if taken and not replace:
        raise _target(storage, f"holds a dataset ({INDEX}) already", "Name another, or replace it with --replace")


def _target(storage: Storage, why: str, fix: str) -> InputError:
    return InputError([Problem(key="--target", value=storage.uri, why=why, fix=fix)])


def _require_both(train: list[Shard], validation: list[Shard], samples: int, held_out: float) -> None:
    if not samples:
        why = "holds nothing: every document is empty"
        raise InputError([Problem(key="SOURCE", value=None, why=why, fix="Name another")])
    if samples == 1:
        why = "nothing is left to train on once it is held out"
        fix = "Cut a text file into smaller ones, such as by --document-kib 16 --held-out 0.1, or give more of them"
        raise InputError([Problem(key="SOURCE", value="one document, or image", why=why, fix=fix)])
    if not validation or not train:
        which, change = ("held out", "Raise") if not validation else ("left to train on", "Lower")
        why = f"of {samples} documents, or images, none is {which}"
        better = min(0.5, 5 / samples)
        enough = f", such as to {better:.2g}" if not validation and better > held_out else ""
        fix = f"{change} it{enough}, or give more of them; --document-kib cuts text files into smaller ones"
        raise InputError([Problem(key="--held-out", value=held_out, why=why, fix=fix)])
