"""Converts conversations into shards of packed rows for fine-tuning."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from trainer.export.model_files import tokenizer_files_in
from trainer.prepare.conversations import ChatTokenizer, read_conversations
from trainer.prepare.dataset import Request, Result, build_dataset, upload_shard
from trainer.prepare.documents import FilePart, ReadOptions
from trainer.prepare.packing import Tokens, pack_rows
from trainer.prepare.partitioning import Part, PartResult, is_held_out, partition
from trainer.prepare.sources import require_target_outside_sources
from trainer.prepare.tokens import TextOptions, concatenate_files, is_used, list_file_parts, settings_of
from trainer.prepare.work_folder import held_out_path
from trainer.prepare.worker_pool import Advance
from trainer.storage import open_storage
from trainyard.errors import InputError, Problem
from trainyard.models.dataset import Shard, TokenDataset

TEMPLATE_FILE = "chat_template.jinja"
_WIDTH = 4  # bytes of a token with flags
_BYTES_PER_TOKEN = 5.0  # of conversations as JSON, approximately


@dataclass(frozen=True, kw_only=True)
class ChatOptions:
    """Sources of conversations. `text.tokenizer` is the folder of a model."""

    text: TextOptions
    sequence_length: int
    chat_template: Path | None = None

    @property
    def row_tokens(self) -> int:
        """Tokens of a row: a sequence, and the target of its last token."""
        return self.sequence_length + 1


@dataclass(frozen=True)
class ChatShardBuilder:
    """Converts a part to a shard of packed rows, in a worker process."""

    target: str
    tokenizer: ChatTokenizer
    reading: ReadOptions
    row_tokens: int
    held_out: float

    def build(self, part: Part[FilePart], work: Path, advance: Advance) -> PartResult:
        """Tokenize and pack the conversations of a part, and write them to the shard and to the held-out file."""
        train: list[Tokens] = []
        held_out: list[Tokens] = []
        truncated = 0
        for file_part in part.items:
            for conversation in read_conversations(file_part, self.reading):
                advance(len(conversation.raw))
                if not is_used(conversation.raw, file_part, self.held_out):
                    continue
                tokens = self.tokenizer.encode(conversation, file_part.file)
                truncated += len(tokens) > self.row_tokens
                split = held_out if is_held_out(conversation.raw, self.held_out) else train
                split.append(tokens[: self.row_tokens])
        partial = work / "temporary" / f"{part.fingerprint}.bin"
        with partial.open("wb") as stream:
            count = self._write(train, stream)
        with held_out_path(work, part.fingerprint).open("wb") as stream:
            held_out_count = self._write(held_out, stream)
        storage = open_storage(self.target, "--target")
        shard = upload_shard(partial, storage, f"train-{part.number:05d}", ".bin", count)
        return PartResult(
            shard=shard,
            held_out=held_out_count,
            samples=len(train) + len(held_out),
            empty_documents=0,
            truncated=truncated,
        )

    def _write(self, conversations: list[Tokens], stream: BinaryIO) -> int:
        """Write packed rows; return the number of their tokens."""
        count = 0
        for row in pack_rows(conversations, self.row_tokens, self.tokenizer.padding):
            stream.write(row.astype("<u4").data)
            count += len(row)
        return count


def prepare_chats(options: ChatOptions, request: Request) -> Result:
    """Prepare a dataset of conversations.

    Raises InputError for invalid arguments or data, OSError for failures of machine or storage.
    """
    text = options.text
    require_target_outside_sources(text.sources, request.target)
    tokenizer = ChatTokenizer(Path(text.tokenizer), _read_template(options.chat_template))
    tokenizer.require()
    files = _tokenizer_files(options)
    file_parts = list_file_parts(text)
    if not file_parts:
        source = " ".join(text.sources)
        raise InputError([Problem("SOURCE", source, "holds no conversations", "Name another", "source_empty")])
    hashes = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    settings = {"--sequence-length": options.sequence_length, "the tokenizer's files": hashes}
    with request.open_work_folder(settings_of(text, file_parts) | settings) as work:
        target_bytes = text.shard_tokens * _BYTES_PER_TOKEN
        inputs: dict[str, Any] = {**settings, "held_out": request.held_out, "reading": text.reading}
        parts = partition(file_parts, target_bytes, inputs)
        builder = ChatShardBuilder(request.target, tokenizer, text.reading, options.row_tokens, request.held_out)

        def create_index(train: list[Shard], validation: list[Shard], samples: int) -> TokenDataset:
            return TokenDataset(
                name=request.name,
                source=f"{samples} conversations of {text.description or ', '.join(text.sources)}",
                train=tuple(train),
                validation=tuple(validation),
                kind="tokens",
                tokenizer="tokenizer.json",
                dtype="uint32",
                vocabulary=tokenizer.size,
                end=tokenizer.end,
                row_tokens=options.row_tokens,
            )

        def merge(files: Iterable[Path]) -> Iterator[tuple[Path, int]]:
            rows = max(1, text.shard_tokens // options.row_tokens)
            merged = concatenate_files(files, rows * options.row_tokens * _WIDTH, work.temporary)
            return ((file, file.stat().st_size // _WIDTH) for file in merged)

        return build_dataset(request, work, parts, builder, merge, ".bin", files, create_index)


def _read_template(file: Path | None) -> str | None:
    try:
        return None if file is None else file.read_text()
    except OSError as error:
        reason = f"can't be read: {error.strerror}"
        problem = Problem("--chat-template", str(file), reason, "Name a Jinja template", "chat_template_not_readable")
        raise InputError([problem]) from None


def _tokenizer_files(options: ChatOptions) -> dict[str, Path]:
    """Return the files of the tokenizer by their names in the dataset."""
    files = tokenizer_files_in(Path(options.text.tokenizer))
    if options.chat_template is not None:
        files[TEMPLATE_FILE] = options.chat_template
    return files
