"""Text into token shards."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from trainer.prepare import tokenizers
from trainer.prepare.dataset import Request, Result, build, upload
from trainer.prepare.documents import Document, Piece, Reading, documents, pieces_of
from trainer.prepare.parts import Made, Part, is_held_out, order_of, parts_of
from trainer.prepare.pool import Advance
from trainer.prepare.progress import say
from trainer.prepare.sources import FORMATS, Format, SourceFile, list_files, require_apart
from trainer.prepare.tokenizers import BYTES, Vocabulary
from trainer.prepare.work import Work, held_out_file
from trainer.storage import open_storage
from trainyard.base import InputError, Problem
from trainyard.models.dataset import Shard, TokenDataset

_BATCH = 1 << 20  # bytes of text that go to the tokenizer at once
_MEASURED = 1 << 20  # bytes of text from which tokens per byte are measured
LEARNT = 256 << 20  # bytes of text that a tokenizer is trained on, at most


@dataclass(frozen=True, kw_only=True)
class Text:
    """What tokens are made from, and how."""

    sources: tuple[str, ...]
    pattern: str = "*"
    exclude: tuple[str, ...] = ()
    format: Format | None = None  # none: by each file's suffix
    reading: Reading = field(default_factory=Reading)
    tokenizer: str = "bytes"
    end: str | None = None
    shard_tokens: int = 64_000_000
    says: str | None = None  # the sources, in words; none: their names


@dataclass(frozen=True)
class TokenMaker:
    """What turns a part into a shard, in a process of its own."""

    target: str
    vocabulary: Vocabulary
    reading: Reading
    held_out: float

    def make(self, part: Part[Piece], work: Path, advance: Advance) -> Made:
        partial = work / "temporary" / f"{part.address}.bin"
        kept = held_out_file(work, part.address)
        samples = left_out = held = 0
        with partial.open("wb") as shard, kept.open("wb") as aside:
            for batch in _batches(part.pieces, self.reading, advance):
                filled = [document for document in batch if document.raw]
                left_out += len(batch) - len(filled)
                samples += len(filled)
                for document, ids in zip(filled, self.vocabulary.encode(filled), strict=True):
                    out = is_held_out(document.raw, self.held_out)
                    held += len(ids) if out else 0
                    (aside if out else shard).write(ids.data)
        made = self._shard(partial, part.number)
        return Made(shard=made, held_out=held, samples=samples, left_out=left_out)

    def _shard(self, file: Path, number: int) -> Shard | None:
        count = file.stat().st_size // self.vocabulary.width
        return upload(file, open_storage(self.target, "--target"), f"train-{number:05d}", ".bin", count)


def prepare_tokens(text: Text, request: Request) -> Result:
    """Make the dataset. Raises InputError on what the user can mend, OSError where machine or storage fail."""
    require_apart(text.sources, request.target)
    tokenizers.require(text.tokenizer, text.end)
    pieces = _pieces(text)
    if not pieces:
        raise InputError([Problem(key="SOURCE", value=" ".join(text.sources), why="holds no text", fix="Name another")])
    with request.open(_words(text, pieces)) as work:
        vocabulary = _vocabulary(text, pieces, request.held_out, work)
        per_token = _bytes_per_token(pieces, text.reading, vocabulary)
        settings = {
            "tokenizer": vocabulary.sha256,
            "end": vocabulary.end,
            "held_out": request.held_out,
            "reading": text.reading,
        }
        parts = parts_of(pieces, text.shard_tokens * per_token, settings)
        maker = TokenMaker(request.target, vocabulary, text.reading, request.held_out)

        def index(train: list[Shard], validation: list[Shard], samples: int) -> TokenDataset:
            return TokenDataset(
                name=request.name,
                source=f"{samples} documents of {text.says or ', '.join(text.sources)}",
                train=tuple(train),
                validation=tuple(validation),
                kind="tokens",
                tokenizer=tokenizers.FILE if vocabulary.file else "bytes",
                dtype=vocabulary.dtype,
                vocabulary=vocabulary.size,
                end=vocabulary.end,
                mask=vocabulary.mask,
            )

        def merge(files: Iterable[Path]) -> Iterator[tuple[Path, int]]:
            width = vocabulary.width
            together = joined(files, text.shard_tokens * width, work.temporary)
            return ((file, file.stat().st_size // width) for file in together)

        beside = {tokenizers.FILE: vocabulary.file} if vocabulary.file else {}
        return build(request, work, parts, maker, merge, ".bin", beside, index)


def joined(files: Iterable[Path], limit: int, folder: Path) -> Iterator[Path]:
    """The files' bytes, one after the other, in new files of `limit` bytes; the last one is shorter."""
    target: BinaryIO | None = None
    number = 0
    for file in files:
        with file.open("rb") as source:
            while True:
                if target is None:
                    target = (folder / f"joined-{number}").open("wb")
                block = source.read(min(1 << 20, limit - target.tell()))
                if not block:
                    break
                target.write(block)
                if target.tell() == limit:
                    target.close()
                    yield Path(target.name)
                    target, number = None, number + 1
    if target is not None:
        with target:
            size = target.tell()
        if size:
            yield Path(target.name)


def _pieces(text: Text) -> list[Piece]:
    """In an order that mixes what the sources hold. Raises InputError where a file's format can't be told."""
    found: list[Piece] = []
    problems: list[Problem] = []
    for file in list_files(text.sources, text.pattern, text.exclude):
        format = text.format or FORMATS.get(file.suffix)
        if format is None:
            why = f"its suffix {file.suffix!r} tells no format"
            problems.append(file.problem(why, "Give --format text, jsonl or parquet, or choose files with --pattern"))
            continue
        try:
            found += pieces_of(file, format, text.reading)
        except InputError as error:
            problems += error.problems
    if problems:
        more = [replace(problems[9], why=f"and {len(problems) - 9} more files")] if len(problems) > 10 else []
        raise InputError(problems[:9] + more if more else problems)
    return sorted(found, key=lambda piece: (order_of(piece.file.name, piece.start), piece.file.uri))


def _words(text: Text, pieces: list[Piece]) -> dict[str, object]:
    """What decides the outcome, for the work folder: what was asked, and the files as they were."""
    files: dict[str, SourceFile] = {piece.file.uri: piece.file for piece in pieces}
    listed = "\n".join(f"{file.uri} {file.size} {file.modified}" for _, file in sorted(files.items()))
    tokenizer = Path(text.tokenizer)
    content = tokenizer.read_bytes() if tokenizer.is_file() else b""
    return {
        "format": text.format,
        "--field": text.reading.field,
        "--encoding-errors": text.reading.replace,
        "--document-kib": text.reading.document,
        "--tokenizer": text.tokenizer,
        "the tokenizer's file": hashlib.sha256(content).hexdigest(),
        "--end": text.end,
        "--shard-tokens": text.shard_tokens,
        "the files of SOURCE": hashlib.sha256(listed.encode()).hexdigest(),
    }


def _vocabulary(text: Text, pieces: list[Piece], held_out: float, work: Work) -> Vocabulary:
    if text.tokenizer == "bytes":
        return BYTES
    file = Path(text.tokenizer)
    if asked := tokenizers.trained(text.tokenizer):
        file = work.folder / "trained.json"
        if not file.exists():
            say(f"trains a tokenizer on up to {LEARNT >> 20} MiB of the text")
            partial = work.temporary / file.name

            def texts() -> Iterator[str]:
                some = _some(pieces, text.reading, LEARNT)
                return (document.text for document in some if not is_held_out(document.raw, held_out))

            tokenizers.train(texts, *asked, partial)
            partial.rename(file)
    return tokenizers.adopt(file, text.end, work.folder / tokenizers.FILE)


def _bytes_per_token(pieces: list[Piece], reading: Reading, vocabulary: Vocabulary) -> float:
    if vocabulary.file is None:
        return 1.0
    some = list(_some(pieces, reading, _MEASURED))
    tokens = sum(len(ids) for ids in vocabulary.encode(some))
    return sum(len(document.raw) for document in some) / max(1, tokens) or 1.0


def _some(pieces: Iterable[Piece], reading: Reading, limit: int) -> Iterator[Document]:
    """The first documents, of at most `limit` bytes together, and at least one."""
    for piece in pieces:
        for document in documents(piece, reading):
            if limit <= 0:
                return
            limit -= len(document.raw)
            yield document


def _batches(pieces: Iterable[Piece], reading: Reading, advance: Advance) -> Iterator[list[Document]]:
    batch: list[Document] = []
    size = 0
    for piece in pieces:
        left = piece.size
        for document in documents(piece, reading):
            batch.append(document)
            size += len(document.raw)
            if size >= _BATCH:
                yield batch
                batch, size = [], 0
            done = min(left, len(document.raw))
            left -= done
            advance(done)
        advance(left)
    if batch:
        yield batch
