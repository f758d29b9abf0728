"""Documents of text files, JSON lines and parquet, streamed: one document, or one batch of rows, is held at once.

A file is cut into pieces from its listing alone, never by who reads it; so any number of processes reads the same
documents. Text files up to DOCUMENT bytes are one document each; of longer ones each stretch of DOCUMENT bytes is one,
cut at the end of a line, or, where none comes within LOOK_AHEAD bytes, between two characters.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from trainer.prepare.sources import Format, SourceFile, open_file, open_parquet
from trainyard.base import InputError

DOCUMENT = 4 << 20
LOOK_AHEAD = 64 << 10
LINE = 64 << 20  # the longest JSON line
_JSON_PIECE = 16 << 20
_ROWS = 256  # of a parquet file that are read at once


class Document(NamedTuple):
    text: str
    raw: bytes  # the same in UTF-8


@dataclass(frozen=True)
class Reading:
    """How documents are read."""

    field: str = "text"  # of a JSON line, or the column of a parquet file
    replace: bool = False  # bytes that are no UTF-8 become U+FFFD
    document: int = DOCUMENT


@dataclass(frozen=True)
class Piece:
    """Part of a file: bytes start to stop, of a parquet file row groups. `size`: bytes of it, about."""

    file: SourceFile
    format: Format
    start: int
    stop: int
    size: int


def pieces_of(file: SourceFile, format: Format, reading: Reading) -> list[Piece]:
    """Raises InputError where a parquet file lacks the column."""
    if format == "parquet":
        return _row_groups(file, reading)
    length = reading.document if format == "text" else _JSON_PIECE
    ends = [(start, min(start + length, file.size)) for start in range(0, file.size, length)]
    return [Piece(file, format, start, stop, stop - start) for start, stop in ends]


def documents(piece: Piece, reading: Reading) -> Iterator[Document]:
    """The piece's documents; one without text has an empty one. Raises InputError on what can't be read."""
    read: dict[Format, Callable[[Piece, Reading], Iterator[Document]]] = {
        "text": _text,
        "jsonl": _json_lines,
        "parquet": _parquet,
    }
    return read[piece.format](piece, reading)


def _text(piece: Piece, reading: Reading) -> Iterator[Document]:
    with open_file(piece.file) as stream:
        start, stop = (_boundary(stream, place, piece.file.size) for place in (piece.start, piece.stop))
        stream.seek(start)
        raw = stream.read(stop - start)
    if piece.size and start == stop:  # all of it is in the document before
        return
    if start == 0:
        raw = raw.removeprefix(b"\xef\xbb\xbf")  # the byte order mark is no part of the text
    yield _decoded(raw, piece.file, start, reading)


def _boundary(stream: Any, place: int, size: int) -> int:
    """Where a document really ends that is to end near `place`: the same for who reads up to it and who goes on."""
    if place in (0, size):
        return place
    stream.seek(place)
    ahead: bytes = stream.read(LOOK_AHEAD)
    if (line_end := ahead.find(b"\n")) >= 0:
        return place + line_end + 1
    return place + next((at for at, byte in enumerate(ahead[:4]) if byte & 0xC0 != 0x80), 0)


def _json_lines(piece: Piece, reading: Reading) -> Iterator[Document]:
    """A line belongs to the piece in which it begins."""
    with open_file(piece.file) as stream:
        at = piece.start
        if at:
            stream.seek(at - 1)
            at += len(_line(stream, piece.file, at)) - 1
        while at < piece.stop and (line := _line(stream, piece.file, at)):
            if line.strip():
                yield _of_json(line, at, piece.file, reading)
            at += len(line)


def _line(stream: Any, file: SourceFile, at: int) -> bytes:
    line: bytes = stream.readline(LINE)
    if len(line) == LINE:
        raise InputError([file.problem(f"line {_line_number(file, at)} is longer than {LINE >> 20} MiB", "Cut it")])
    return line


def _of_json(line: bytes, at: int, file: SourceFile, reading: Reading) -> Document:
    text = _decoded(line, file, at, reading).text
    try:
        row = json.loads(text.removeprefix("\ufeff") if at == 0 else text)
    except ValueError as error:
        raise InputError(
            [file.problem(f"line {_line_number(file, at)} is no JSON: {error}", "Mend the line")]
        ) from None
    if not isinstance(row, dict) or reading.field not in row:
        has = f"has {', '.join(row) or 'no field'}" if isinstance(row, dict) else "is no object"
        why = f"line {_line_number(file, at)} has no field {reading.field!r}: it {has}"
        raise InputError([file.problem(why, "Name the field of the text with --field")])
    value = row[reading.field]
    if value is not None and not isinstance(value, str):
        why = f"line {_line_number(file, at)}: field {reading.field!r} is no text but {json.dumps(value)[:40]}"
        raise InputError([file.problem(why, "Name the field of the text with --field")])
    value = value or ""
    try:
        return Document(value, value.encode())
    except UnicodeEncodeError:  # JSON can write half a surrogate pair, which is no character
        if reading.replace:
            return _replaced(value)
        why = f"line {_line_number(file, at)}: field {reading.field!r} holds half a surrogate pair"
        raise InputError([file.problem(why, "Mend it, or take --encoding-errors replace")]) from None


def _row_groups(file: SourceFile, reading: Reading) -> list[Piece]:
    import pyarrow.types as types

    with open_parquet(file) as opened:
        schema, metadata = opened.schema_arrow, opened.metadata
        if reading.field not in schema.names:
            why = f"has no column {reading.field!r}: it has {', '.join(schema.names)}"
            raise InputError([file.problem(why, "Name the column of the text with --field")])
        kind = schema.field(reading.field).type
        if not (types.is_string(kind) or types.is_large_string(kind)):
            why = f"column {reading.field!r} is no text but {kind}"
            raise InputError([file.problem(why, "Name the column of the text with --field")])
        column = schema.names.index(reading.field)
        if metadata.num_columns != len(schema.names):  # a nested column before ours counts as several
            paths = [metadata.schema.column(number).path for number in range(metadata.num_columns)]
            column = paths.index(reading.field)
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        return [
            Piece(file, "parquet", number, number + 1, group.column(column).total_uncompressed_size)
            for number, group in enumerate(groups)
            if group.num_rows
        ]


def _parquet(piece: Piece, reading: Reading) -> Iterator[Document]:
    with open_parquet(piece.file) as opened:
        groups = range(piece.start, piece.stop)
        for batch in opened.iter_batches(_ROWS, row_groups=groups, columns=[reading.field], use_threads=False):
            for value in batch.column(0):
                raw = value.as_buffer().to_pybytes() if value.is_valid else b""
                yield _decoded(raw, piece.file, 0, reading)


def _decoded(raw: bytes, file: SourceFile, at: int, reading: Reading) -> Document:
    try:
        return Document(raw.decode(), raw)
    except UnicodeDecodeError as error:
        if reading.replace:
            return _replaced(raw)
        why = f"byte {at + error.start} is no UTF-8: {raw[error.start : error.start + 4]!r}"
        raise InputError([file.problem(why, "Convert it, or take --encoding-errors replace")]) from None


def _replaced(value: bytes | str) -> Document:
    raw = value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")
    text = raw.decode("utf-8", "replace")
    return Document(text, text.encode())


def _line_number(file: SourceFile, at: int) -> int:
    """Of the line that begins at a byte: looked up only where it is told."""
    with open_file(file) as stream:
        number, left = 1, at
        while left and (block := stream.read(min(left, 1 << 20))):
            number += block.count(b"\n")
            left -= len(block)
    return number
