"""Documents of files: none is lost or repeated, wherever files are split."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.problems import rejects
from trainer.prepare import documents as subject
from trainer.prepare.documents import ReadOptions, read_documents, split_file
from trainer.prepare.sources import Format, list_files


def read(path: Path, format: Format, reading: ReadOptions | None = None) -> list[str]:
    reading = reading or ReadOptions()
    (file,) = list_files([str(path)])
    return [document.text for piece in split_file(file, format, reading) for document in read_documents(piece, reading)]


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def parquet(path: Path, values: list[object], name: str = "text") -> Path:
    pq.write_table(pa.table({"nested": [{"a": 1, "b": 2}] * len(values), name: values}), path, row_group_size=2)
    return path


def test_short_text_file_is_one_document(tmp_path: Path) -> None:
    assert read(write(tmp_path / "a.txt", "eins\nzwei ü\n".encode()), "text") == ["eins\nzwei ü\n"]


def test_long_text_file_is_split_at_line_ends(tmp_path: Path) -> None:
    text = "".join(f"line {number}\n" for number in range(5000))
    result = read(write(tmp_path / "a.txt", text.encode()), "text", ReadOptions(document_bytes=1000))
    assert "".join(result) == text
    assert len(result) > 40
    assert all(text.endswith("\n") and len(text) < 1020 for text in result)


def test_text_without_line_ends_is_split_between_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "LINE_SEARCH_BYTES", 16)
    text = "aü€😀" * 500
    result = read(write(tmp_path / "a.txt", text.encode()), "text", ReadOptions(document_bytes=101))
    assert "".join(result) == text
    assert max(len(document.encode()) for document in result) <= 104


def test_byte_order_mark_is_removed(tmp_path: Path) -> None:
    assert read(write(tmp_path / "a.txt", b"\xef\xbb\xbfone"), "text") == ["one"]


def test_json_lines_do_not_depend_on_the_size_of_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"ü{number}" * (number % 9 + 1) for number in range(200)]
    file = write(tmp_path / "a.jsonl", "\n".join(json.dumps({"text": text}) for text in texts).encode())
    for length in (1, 7, 64, 1 << 20):
        monkeypatch.setattr(subject, "_JSON_PART_BYTES", length)
        assert read(file, "jsonl") == texts


def test_parquet_is_read_by_row_groups(tmp_path: Path) -> None:
    assert read(parquet(tmp_path / "a.parquet", ["a", None, "ü", "", "e"]), "parquet") == ["a", "", "ü", "", "e"]


@pytest.mark.parametrize(
    ("content", "code", "value"),
    [
        (b'{"text": "a"}\n\n{"body": "b"}\n', "field_missing", "a.jsonl': line 3"),
        (b'{"text": "a"}\n[1]\n', "invalid_json", "line 2"),
        (b'{"text": "a"}\n{"text": \n', "invalid_json", "line 2"),
        (b'{"text": 5}\n', "field_not_text", "line 1"),
        (b'{"text": "\\ud800"}\n', "invalid_utf8", "line 1"),
        (b'{"text": "a"}\n{"text": "\xff"}\n', "invalid_utf8", "byte 24"),
    ],
)
def test_invalid_json_line_is_rejected_with_its_number(tmp_path: Path, content: bytes, code: str, value: str) -> None:
    with rejects(code, value):
        read(write(tmp_path / "a.jsonl", content), "jsonl")


def test_line_number_counts_from_the_start_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "_JSON_PART_BYTES", 30)
    with rejects("field_missing", "line 41"):
        read(write(tmp_path / "a.jsonl", b'{"text": "a"}\n' * 40 + b"{}\n"), "jsonl")


def test_line_longer_than_the_limit_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "MAX_LINE_BYTES", 100)
    with rejects("line_too_long", "line 2"):
        read(write(tmp_path / "a.jsonl", b'{"text": "a"}\n' + b'{"text": "' + b"a" * 200 + b'"}'), "jsonl")


def test_invalid_utf8_is_rejected_with_its_offset(tmp_path: Path) -> None:
    with rejects("invalid_utf8", "a.txt", "byte 5007"):
        read(write(tmp_path / "a.txt", b"12345678\n" * 556 + b"abc\xfc"), "text", ReadOptions(document_bytes=1000))


def test_invalid_utf8_is_replaced_on_request(tmp_path: Path) -> None:
    assert read(write(tmp_path / "a.txt", b"a\xfcb"), "text", ReadOptions(replace_invalid=True)) == ["a\ufffdb"]


def test_missing_column_is_rejected(tmp_path: Path) -> None:
    with rejects("column_missing", "'text'", "nested, body"):
        read(parquet(tmp_path / "a.parquet", ["a"], "body"), "parquet")


def test_column_of_numbers_is_rejected(tmp_path: Path) -> None:
    with rejects("column_not_text", "'text'", "int64"):
        read(parquet(tmp_path / "a.parquet", [1, 2]), "parquet")


def test_file_that_is_no_parquet_is_rejected(tmp_path: Path) -> None:
    with rejects("invalid_parquet", "a.parquet"):
        read(write(tmp_path / "a.parquet", b"nothing of the kind"), "parquet")


def test_size_of_a_row_group_is_that_of_its_text(tmp_path: Path) -> None:
    (file,) = list_files([str(parquet(tmp_path / "a.parquet", ["a" * 5000, "b"]))])
    (piece,) = split_file(file, "parquet", ReadOptions())
    assert 5000 < piece.size < 6000
