"""Converts text into shards of tokens."""

import hashlib
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path
from typing import BinaryIO

from trainer.prepare import tokenizers
from trainer.prepare.dataset import Request, Result, build_dataset, upload_shard
from trainer.prepare.documents import Document, FilePart, ReadOptions, read_documents, split_file
from trainer.prepare.partitioning import Part, PartResult, is_held_out, is_selected, partition, shuffle_key
from trainer.prepare.sources import FORMATS, Format, SourceFile, list_files, require_target_outside_sources
from trainer.prepare.tokenizers import BYTES, Vocabulary
from trainer.prepare.work_folder import WorkFolder, held_out_path
from trainer.prepare.worker_pool import Advance
from trainer.storage import open_storage
from trainyard.errors import InputError, Problem
from trainyard.models.dataset import Shard, TokenDataset

_BATCH_BYTES = 1 << 20  # text per call of the tokenizer
_MEASURED_BYTES = 1 << 20  # text for the measurement of tokens per byte
MAX_TRAINING_BYTES = 256 << 20  # text that a tokenizer is trained on
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """Sources of a dataset of text, and options for its preparation."""

    sources: tuple[str, ...]
    pattern: str = "*"
    exclude: tuple[str, ...] = ()
    format: Format | None = None  # None: by each file's suffix
    reading: ReadOptions = field(default_factory=ReadOptions)
    tokenizer: str = "bytes"
    end: str | None = None
    shard_tokens: int = 64_000_000
    weights: tuple[float, ...] = ()  # share of each source in the text; empty: the sources as they are
    description: str | None = None  # of the sources, for the index; None: their names


@dataclass(frozen=True)
class TokenShardBuilder:
    """Converts a part to a shard of tokens, in a worker process."""

    target: str
    vocabulary: Vocabulary
    reading: ReadOptions
    held_out: float

    def build(self, part: Part[FilePart], work: Path, advance: Advance) -> PartResult:
        """Tokenize the documents of a part, and write them to the shard and to the held-out file."""
        partial = work / "temporary" / f"{part.fingerprint}.bin"
        held_out_file = held_out_path(work, part.fingerprint)
        samples = empty_documents = held_out_tokens = 0
        with partial.open("wb") as shard_stream, held_out_file.open("wb") as held_out_stream:
            for batch in _batches(part.items, self.reading, self.held_out, advance):
                empty_documents += sum(not document.raw for document in batch)
                filled = [document for document in batch if document.raw]
                samples += len(filled)
                for document, ids in zip(filled, self.vocabulary.encode(filled), strict=True):
                    held_out = is_held_out(document.raw, self.held_out)
                    held_out_tokens += len(ids) if held_out else 0
                    (held_out_stream if held_out else shard_stream).write(ids.data)
        shard = self._upload(partial, part.number)
        return PartResult(shard=shard, held_out=held_out_tokens, samples=samples, empty_documents=empty_documents)

    def _upload(self, file: Path, number: int) -> Shard | None:
        count = file.stat().st_size // self.vocabulary.width
        return upload_shard(file, open_storage(self.target, "--target"), f"train-{number:05d}", ".bin", count)


def prepare_tokens(options: TextOptions, request: Request) -> Result:
    """Prepare a dataset of tokens.

    Raises InputError for invalid arguments or data, OSError for failures of machine or storage.
    """
    require_target_outside_sources(options.sources, request.target)
    tokenizers.require_tokenizer(options.tokenizer, options.end)
    file_parts = list_file_parts(options)
    if not file_parts:
        source = " ".join(options.sources)
        raise InputError([Problem("SOURCE", source, "holds no text", "Name another", "source_empty")])
    with request.open_work_folder(settings_of(options, file_parts)) as work:
        vocabulary = _load_vocabulary(options, file_parts, request.held_out, work)
        bytes_per_token = _bytes_per_token(file_parts, options.reading, vocabulary)
        settings = {
            "tokenizer": vocabulary.sha256,
            "end": vocabulary.end,
            "held_out": request.held_out,
            "reading": options.reading,
        }
        parts = partition(file_parts, options.shard_tokens * bytes_per_token, settings)
        builder = TokenShardBuilder(request.target, vocabulary, options.reading, request.held_out)

        def create_index(train: list[Shard], validation: list[Shard], samples: int) -> TokenDataset:
            return TokenDataset(
                name=request.name,
                source=f"{samples} documents of {options.description or ', '.join(options.sources)}",
                train=tuple(train),
                validation=tuple(validation),
                kind="tokens",
                tokenizer=tokenizers.TOKENIZER_FILE if vocabulary.file else "bytes",
                dtype=vocabulary.dtype,
                vocabulary=vocabulary.size,
                start=vocabulary.start,
                end=vocabulary.end,
                mask=vocabulary.mask,
            )

        def merge(files: Iterable[Path]) -> Iterator[tuple[Path, int]]:
            width = vocabulary.width
            merged = concatenate_files(files, options.shard_tokens * width, work.temporary)
            return ((file, file.stat().st_size // width) for file in merged)

        imported = None if tokenizers.parse_training(options.tokenizer) else Path(options.tokenizer)
        extra_files = tokenizers.tokenizer_files(vocabulary, imported)
        return build_dataset(request, work, parts, builder, merge, ".bin", extra_files, create_index)


def is_used(content: bytes, part: FilePart, held_out: float) -> bool:
    """Return whether a sample of a part is in the dataset: a held-out sample is in the first copy only."""
    return is_selected(content, part.share) and not (part.copy and is_held_out(content, held_out))


def concatenate_files(files: Iterable[Path], limit_bytes: int, folder: Path) -> Iterator[Path]:
    """Concatenate files into new files of `limit_bytes` each; the last new file may be shorter."""
    target: BinaryIO | None = None
    number = 0
    for file in files:
        with file.open("rb") as source:
            while True:
                if target is None:
                    target = (folder / f"merged-{number}").open("wb")
                block = source.read(min(1 << 20, limit_bytes - target.tell()))
                if not block:
                    break
                target.write(block)
                if target.tell() == limit_bytes:
                    target.close()
                    yield Path(target.name)
                    target, number = None, number + 1
    if target is not None:
        with target:
            size = target.tell()
        if size:
            yield Path(target.name)


def list_file_parts(options: TextOptions) -> list[FilePart]:
    """List the parts of all files, in an order that mixes the sources.

    Raises InputError if the format of a file is unknown, or if there is not a weight for each source.
    """
    if options.weights and len(options.weights) != len(options.sources):
        reason = f"are {len(options.weights)} for {len(options.sources)} sources"
        problem = Problem(
            "--source-weights", list(options.weights), reason, "Set one for each SOURCE", "weights_mismatch"
        )
        raise InputError([problem])
    problems: list[Problem] = []
    by_source = []
    for source in options.sources if options.weights else [options.sources]:
        sources = (source,) if isinstance(source, str) else source
        by_source.append(list(_split_files(list_files(sources, options.pattern, options.exclude), options, problems)))
    if problems:
        more = [replace(problems[9], reason=f"and {len(problems) - 9} more files")] if len(problems) > 10 else []
        raise InputError(problems[:9] + more if more else problems)
    file_parts = list(_mix(by_source, options.weights) if options.weights else by_source[0])
    return sorted(
        file_parts, key=lambda part: (shuffle_key(part.file.name, part.start, part.copy), part.file.uri, part.copy)
    )


def _split_files(files: list[SourceFile], options: TextOptions, problems: list[Problem]) -> Iterator[FilePart]:
    """Yield the parts of files, and add the problems of files to `problems`."""
    for file in files:
        format = options.format or FORMATS.get(file.suffix)
        if format is None or (format == "text" and not options.reading.is_text):
            formats = "text, jsonl or parquet" if options.reading.is_text else "jsonl or parquet"
            reason = f"its suffix {file.suffix!r} has no known format"
            fix = f"Set --format {formats}, or select files with --pattern"
            problems.append(file.problem(reason, fix, "unknown_file_format"))
            continue
        try:
            yield from split_file(file, format, options.reading)
        except InputError as error:
            problems += error.problems


def _mix(by_source: list[list[FilePart]], weights: tuple[float, ...]) -> Iterator[FilePart]:
    """Yield parts whose text has the shares `weights`, and the size of all sources.

    Those of a source with more weight than text are used several times, the last time in part.
    """
    sizes = [sum(part.size for part in parts) for parts in by_source]
    for parts, size, weight in zip(by_source, sizes, weights, strict=True):
        copies = weight / sum(weights) * sum(sizes) / max(1, size)
        for copy in range(ceil(copies)):
            share = min(1.0, copies - copy)
            yield from (replace(part, copy=copy, share=share, size=round(part.size * share)) for part in parts)


def settings_of(options: TextOptions, file_parts: list[FilePart]) -> dict[str, object]:
    """Return all settings that determine the dataset, for the work folder: arguments, and the state of the files."""
    files: dict[str, SourceFile] = {part.file.uri: part.file for part in file_parts}
    listing = "\n".join(f"{file.uri} {file.size} {file.modified}" for _, file in sorted(files.items()))
    tokenizer = Path(options.tokenizer)
    content = tokenizer.read_bytes() if tokenizer.is_file() else b""
    return {
        "format": options.format,
        "--field": options.reading.field,
        "--encoding-errors": options.reading.replace_invalid,
        "--document-kib": options.reading.document_bytes,
        "--tokenizer": options.tokenizer,
        "the tokenizer's file": hashlib.sha256(content).hexdigest(),
        "--end": options.end,
        "--shard-tokens": options.shard_tokens,
        "--source-weights": list(options.weights),
        "the files of SOURCE": hashlib.sha256(listing.encode()).hexdigest(),
    }


def _load_vocabulary(options: TextOptions, file_parts: list[FilePart], held_out: float, work: WorkFolder) -> Vocabulary:
    if options.tokenizer == "bytes":
        return BYTES
    file = Path(options.tokenizer)
    if training := tokenizers.parse_training(options.tokenizer):
        file = work.path / "trained.json"
        if not file.exists():
            log.info("training a tokenizer on up to %d MiB of the text", MAX_TRAINING_BYTES >> 20)
            partial = work.temporary / file.name

            def texts() -> Iterator[str]:
                documents = _first_documents(file_parts, options.reading, MAX_TRAINING_BYTES)
                return (document.text for document in documents if not is_held_out(document.raw, held_out))

            tokenizers.train(texts, *training, partial)
            partial.rename(file)
    return tokenizers.import_tokenizer(file, options.end, work.path / tokenizers.TOKENIZER_FILE)


def _bytes_per_token(file_parts: list[FilePart], reading: ReadOptions, vocabulary: Vocabulary) -> float:
    if vocabulary.file is None:
        return 1.0
    documents = list(_first_documents(file_parts, reading, _MEASURED_BYTES))
    tokens = sum(len(ids) for ids in vocabulary.encode(documents))
    return sum(len(document.raw) for document in documents) / max(1, tokens) or 1.0


def _first_documents(file_parts: Iterable[FilePart], reading: ReadOptions, limit_bytes: int) -> Iterator[Document]:
    """Yield documents until they have at least `limit_bytes`."""
    for part in file_parts:
        for document in read_documents(part, reading):
            if limit_bytes <= 0:
                return
            limit_bytes -= len(document.raw)
            yield document


def _batches(
    file_parts: Iterable[FilePart], reading: ReadOptions, held_out: float, advance: Advance
) -> Iterator[list[Document]]:
    batch: list[Document] = []
    size = 0
    for part in file_parts:
        remaining = part.size
        for document in read_documents(part, reading):
            if is_used(document.raw, part, held_out):
                batch.append(document)
                size += len(document.raw)
            if size >= _BATCH_BYTES:
                yield batch
                batch, size = [], 0
            done = min(remaining, len(document.raw))
            remaining -= done
            advance(done)
        advance(remaining)
    if batch:
        yield batch
