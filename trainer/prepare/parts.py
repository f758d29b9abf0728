"""How the work is cut: into parts, one shard each, by what is there and never by who does it."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Generic, Protocol, TypeVar

from trainyard.base import Contract
from trainyard.models.dataset import Shard

_PARTS = 16  # of a small corpus, so that all processes and ranks have some of it ...
_LEAST = 1 << 20  # ... but none smaller than this, bytes


class Sized(Protocol):
    """What a part is made of: a dataclass."""

    @property
    def size(self) -> int: ...


P = TypeVar("P", bound=Sized)


@dataclass(frozen=True)
class Part(Generic[P]):
    """What one process makes a shard of. `address` is a hash of all that decides what comes out."""

    number: int
    pieces: tuple[P, ...]
    size: int
    address: str


class Made(Contract):
    """What came of a part: its shard, and what it holds out in a file of the work folder."""

    shard: Shard | None  # none where all of the part was held out, or empty
    held_out: int  # tokens, or images
    samples: int  # documents, or images
    left_out: int  # documents without text
    failed: tuple[str, ...] = ()  # images that can't be decoded, and why


def order_of(name: str, start: int = 0) -> str:
    """A place in an order that mixes files and parts of files and is the same everywhere."""
    return hashlib.blake2b(f"{name}\0{start}".encode(), digest_size=16).hexdigest()


def is_held_out(content: bytes, share: float) -> bool:
    """By a hash of the sample: equal ones are on the same side, whatever their order, files or number."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest()) < share * 2**64


def parts_of(pieces: Sequence[P], target: float, settings: dict[str, Any]) -> list[Part[P]]:
    """Pieces, in their order, as parts of about `target` bytes, all about equal.

    Few pieces make more and smaller parts: at least 16, of a MiB or more. `settings` is what else decides.
    """
    total = sum(piece.size for piece in pieces)
    count = max(1, -(-total // max(1, int(min(target, max(total / _PARTS, _LEAST))))))
    groups: list[list[P]] = [[] for _ in range(count)]
    before = 0
    for piece in pieces:
        groups[min(count - 1, (before + piece.size // 2) * count // max(1, total))].append(piece)
        before += piece.size
    filled = [tuple(group) for group in groups if group]
    return [
        Part(number, group, sum(piece.size for piece in group), address(settings | {"pieces": group}))
        for number, group in enumerate(filled)
    ]


def address(what: dict[str, Any]) -> str:
    """A hash of names and values, dataclasses among them."""
    return hashlib.sha256(json.dumps(what, sort_keys=True, default=asdict).encode()).hexdigest()
