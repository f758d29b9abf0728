"""Reads the documents of text files, JSON lines and parquet: one document, or one batch of rows, at a time.

A file is split by its listing alone, so that any number of processes reads the same documents. A text file of up to
MAX_DOCUMENT_BYTES is one document. A longer file is split into documents of about that size, at the end of a line, or
between two characters if no line ends within LINE_SEARCH_BYTES.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from trainer.prepare.sources import Format, SourceFile, open_file, open_parquet
from trainyard.errors import InputError

MAX_DOCUMENT_BYTES = 4 << 20
LINE_SEARCH_BYTES = 64 << 10
MAX_LINE_BYTES = 64 << 20  # of a JSON line
_JSON_PART_BYTES = 16 << 20
_BATCH_ROWS = 256  # of a parquet file


class Document(NamedTuple):
    """A document: its text, and the same text in UTF-8."""

    text: str
    raw: bytes


@dataclass(frozen=True)
class ReadOptions:
    """Options for reading documents."""

    field: str = "text"  # field of a JSON line, or column of a parquet file
    replace_invalid: bool = False  # replace bytes that are no UTF-8 by U+FFFD
    document_bytes: int = MAX_DOCUMENT_BYTES
    is_text: bool = True  # whether the field is text; else any value


@dataclass(frozen=True)
class FilePart:
    """A part of a file: bytes, or row groups of a parquet file, from start to stop. `size`: about its bytes.

    With a mixture of sources, a part is used several times: `copy` counts them. `share`: share of its documents, which
    is selected by a hash of their text.
    """

    file: SourceFile
    format: Format
    start: int
    stop: int
    size: int
    copy: int = 0
    share: float = 1.0


def split_file(file: SourceFile, format: Format, options: ReadOptions) -> list[FilePart]:
    """Split a file into parts. Raises InputError if a parquet file has no column of text with the name."""
    if format == "parquet":
        return _row_groups(file, options)
    length = options.document_bytes if format == "text" else _JSON_PART_BYTES
    ranges = [(start, min(start + length, file.size)) for start in range(0, file.size, length)]
    return [FilePart(file, format, start, stop, stop - start) for start, stop in ranges]


def read_documents(part: FilePart, options: ReadOptions) -> Iterator[Document]:
    """Yield the documents of a part, empty ones included. Raises InputError if one can't be read."""
    readers: dict[Format, Callable[[FilePart, ReadOptions], Iterator[Document]]] = {
        "text": _read_text,
        "jsonl": _read_json_lines,
        "parquet": _read_parquet,
    }
    return readers[part.format](part, options)


def _read_text(part: FilePart, options: ReadOptions) -> Iterator[Document]:
    with open_file(part.file) as stream:
        start, stop = (_boundary(stream, offset, part.file.size) for offset in (part.start, part.stop))
        stream.seek(start)
        raw = stream.read(stop - start)
    if part.size and start == stop:  # the previous document has all of its text
        return
    if start == 0:
        raw = raw.removeprefix(b"\xef\xbb\xbf")  # the byte order mark is no part of the text
    yield _decode(raw, part.file, start, options)


def _boundary(stream: Any, offset: int, size: int) -> int:
    """Return the end of the document near `offset`. It is the same for this document and the next one."""
    if offset in (0, size):
        return offset
    stream.seek(offset)
    following: bytes = stream.read(LINE_SEARCH_BYTES)
    if (line_end := following.find(b"\n")) >= 0:
        return offset + line_end + 1
    return offset + next((at for at, byte in enumerate(following[:4]) if byte & 0xC0 != 0x80), 0)


def read_rows(part: FilePart, options: ReadOptions) -> Iterator[tuple[dict[str, Any], Callable[[], str]]]:
    """Yield the rows of JSON lines or parquet, each with a function that returns its position, for error messages."""
    if part.format == "parquet":
        with open_parquet(part.file) as opened:
            groups = range(part.start, part.stop)
            number = 0
            for batch in opened.iter_batches(_BATCH_ROWS, row_groups=groups, use_threads=False):
                for row in batch.to_pylist():
                    number += 1
                    yield row, partial(_row_name, number, part.start)
        return
    for line, offset in _lines(part):
        yield _parse_row(line, offset, part.file, options), partial(_line_name, part.file, offset)


def _read_json_lines(part: FilePart, options: ReadOptions) -> Iterator[Document]:
    for line, offset in _lines(part):
        yield _parse_json(line, offset, part.file, options)


def _lines(part: FilePart) -> Iterator[tuple[bytes, int]]:
    """Yield the lines that start in the part, with their offsets, without empty ones."""
    with open_file(part.file) as stream:
        offset = part.start
        if offset:
            stream.seek(offset - 1)
            offset += len(_read_line(stream, part.file, offset)) - 1
        while offset < part.stop and (line := _read_line(stream, part.file, offset)):
            if line.strip():
                yield line, offset
            offset += len(line)


def _read_line(stream: Any, file: SourceFile, offset: int) -> bytes:
    line: bytes = stream.readline(MAX_LINE_BYTES)
    if len(line) == MAX_LINE_BYTES:
        reason = f"line {_line_number(file, offset)} is longer than {MAX_LINE_BYTES >> 20} MiB"
        raise InputError([file.problem(reason, "Split it into several lines", "line_too_long")])
    return line


def _parse_row(line: bytes, offset: int, file: SourceFile, options: ReadOptions) -> dict[str, Any]:
    text = _decode(line, file, offset, options).text
    try:
        row = json.loads(text.removeprefix("\ufeff") if offset == 0 else text)
    except ValueError as error:
        reason = f"line {_line_number(file, offset)} is no JSON: {error}"
        raise InputError([file.problem(reason, "Correct the line", "invalid_json")]) from None
    if not isinstance(row, dict):
        reason = f"line {_line_number(file, offset)} is no JSON object"
        raise InputError([file.problem(reason, "Correct the line", "invalid_json")])
    return row


def _parse_json(line: bytes, offset: int, file: SourceFile, options: ReadOptions) -> Document:
    row = _parse_row(line, offset, file, options)
    if options.field not in row:
        fields = ", ".join(row) or "no field"
        reason = f"line {_line_number(file, offset)} has no field {options.field!r}: it has {fields}"
        raise InputError([file.problem(reason, "Name the field of the text with --field", "field_missing")])
    value = row[options.field]
    if value is not None and not isinstance(value, str):
        reason = f"line {_line_number(file, offset)}: field {options.field!r} is no text but {json.dumps(value)[:40]}"
        raise InputError([file.problem(reason, "Name the field of the text with --field", "field_not_text")])
    value = value or ""
    try:
        return Document(value, value.encode())
    except UnicodeEncodeError:  # JSON can have half a surrogate pair, which is no character
        if options.replace_invalid:
            return _replace_invalid(value)
        reason = f"line {_line_number(file, offset)}: field {options.field!r} holds half a surrogate pair"
        raise InputError(
            [file.problem(reason, "Correct it, or use --encoding-errors replace", "invalid_utf8")]
        ) from None


def _row_groups(file: SourceFile, options: ReadOptions) -> list[FilePart]:
    import pyarrow.types as types

    with open_parquet(file) as opened:
        schema, metadata = opened.schema_arrow, opened.metadata
        if not options.is_text:
            groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
            return [
                FilePart(file, "parquet", number, number + 1, group.total_byte_size)
                for number, group in enumerate(groups)
                if group.num_rows
            ]
        if options.field not in schema.names:
            reason = f"has no column {options.field!r}: it has {', '.join(schema.names)}"
            raise InputError([file.problem(reason, "Name the column of the text with --field", "column_missing")])
        kind = schema.field(options.field).type
        if not (types.is_string(kind) or types.is_large_string(kind)):
            reason = f"column {options.field!r} is no text but {kind}"
            raise InputError([file.problem(reason, "Name the column of the text with --field", "column_not_text")])
        column = schema.names.index(options.field)
        if metadata.num_columns != len(schema.names):  # a nested column counts as several
            paths = [metadata.schema.column(number).path for number in range(metadata.num_columns)]
            column = paths.index(options.field)
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        return [
            FilePart(file, "parquet", number, number + 1, group.column(column).total_uncompressed_size)
            for number, group in enumerate(groups)
            if group.num_rows
        ]


def _read_parquet(part: FilePart, options: ReadOptions) -> Iterator[Document]:
    with open_parquet(part.file) as opened:
        groups = range(part.start, part.stop)
        for batch in opened.iter_batches(_BATCH_ROWS, row_groups=groups, columns=[options.field], use_threads=False):
            for value in batch.column(0):
                raw = value.as_buffer().to_pybytes() if value.is_valid else b""
                yield _decode(raw, part.file, 0, options)


def _decode(raw: bytes, file: SourceFile, offset: int, options: ReadOptions) -> Document:
    try:
        return Document(raw.decode(), raw)
    except UnicodeDecodeError as error:
        if options.replace_invalid:
            return _replace_invalid(raw)
        reason = f"byte {offset + error.start} is no UTF-8: {raw[error.start : error.start + 4]!r}"
        raise InputError(
            [file.problem(reason, "Convert it, or use --encoding-errors replace", "invalid_utf8")]
        ) from None


def _replace_invalid(value: bytes | str) -> Document:
    raw = value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")
    text = raw.decode("utf-8", "replace")
    return Document(text, text.encode())


def _row_name(number: int, group: int) -> str:
    return f"row {number} of row group {group}"


def _line_name(file: SourceFile, offset: int) -> str:
    return f"line {_line_number(file, offset)}"


def _line_number(file: SourceFile, offset: int) -> int:
    """Count the lines up to a byte offset, for error messages only."""
    with open_file(file) as stream:
        number, remaining = 1, offset
        while remaining and (block := stream.read(min(remaining, 1 << 20))):
            number += block.count(b"\n")
            remaining -= len(block)
    return number
