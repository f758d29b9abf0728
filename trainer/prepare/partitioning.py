"""Partitions the source data into parts, one shard each. The parts do not depend on the number of processes."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Generic, Protocol, TypeVar

from trainyard.base import StrictModel
from trainyard.models.dataset import Shard

_MIN_PARTS = 16  # of a small corpus, so that all processes and ranks have shards ...
_MIN_PART_BYTES = 1 << 20  # ... except if the parts would be smaller than this


class Sized(Protocol):
    """An item of a part: a dataclass with a size in bytes."""

    @property
    def size(self) -> int:
        """Size in bytes."""


P = TypeVar("P", bound=Sized)


@dataclass(frozen=True)
class Part(Generic[P]):
    """Items of one shard. `fingerprint` is a hash of everything that determines the content of the shard."""

    number: int
    items: tuple[P, ...]
    size: int
    fingerprint: str


class PartResult(StrictModel):
    """The result of a part: its shard. The held-out samples are in a file of the work folder."""

    shard: Shard | None  # None if all samples of the part are held out, or if it has none
    held_out: int  # tokens or images
    samples: int  # documents or images
    empty_documents: int  # documents without text, which are skipped
    failed: tuple[str, ...] = ()  # images that can't be decoded, with the reason
    truncated: int = 0  # conversations that are longer than a row


def shuffle_key(name: str, start: int = 0, copy: int = 0) -> str:
    """Return a hash to sort files, and parts of files, in a mixed order that is the same on every machine."""
    position = f"{name}\0{start}" + (f"\0{copy}" if copy else "")
    return hashlib.blake2b(position.encode(), digest_size=16).hexdigest()


def is_held_out(content: bytes, share: float) -> bool:
    """Return whether a sample is held out, by a hash of its content: equal samples are in the same split."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest()) < share * 2**64


def is_selected(content: bytes, share: float) -> bool:
    """Return whether a sample is in a mixture that has a share of its source, by a hash of its content."""
    digest = hashlib.blake2b(content, digest_size=8, person=b"mixture").digest()
    return share >= 1 or int.from_bytes(digest) < share * 2**64


def partition(items: Sequence[P], target_bytes: float, settings: dict[str, Any]) -> list[Part[P]]:
    """Divide the items, in their order, into parts of similar size, about `target_bytes` each.

    A small corpus has at least 16 smaller parts if each of them has a MiB or more. `settings` are the other inputs that
    determine the shards.
    """
    total = sum(item.size for item in items)
    count = max(1, -(-total // max(1, int(min(target_bytes, max(total / _MIN_PARTS, _MIN_PART_BYTES))))))
    groups: list[list[P]] = [[] for _ in range(count)]
    before = 0
    for item in items:
        groups[min(count - 1, (before + item.size // 2) * count // max(1, total))].append(item)
        before += item.size
    filled = [tuple(group) for group in groups if group]
    return [
        Part(number, group, sum(item.size for item in group), fingerprint(settings | {"items": group}))
        for number, group in enumerate(filled)
    ]


def fingerprint(values: dict[str, Any]) -> str:
    """Return a hash of names and values. Values may be dataclasses."""
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=asdict).encode()).hexdigest()
