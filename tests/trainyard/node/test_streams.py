"""Streams to S3: lines are written in order, once, and again after a failure."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from rehearsal.aws.faults import Deny
from rehearsal.aws.process import EmulatedAws
from trainyard.aws.s3 import Bucket
from trainyard.node import streams
from trainyard.node.streams import ChunkWriter, FileTail


def content(bucket: Bucket, prefix: str) -> list[bytes]:
    return [bucket.read(key) for key in bucket.keys(prefix)]


def test_lines_are_written_in_numbered_chunks(bucket: Bucket) -> None:
    with ChunkWriter(bucket, "s/a-") as writer:
        writer.write_line(b"one")
        writer.flush()
        writer.write_line(b"two\n")
    assert list(bucket.keys("s/")) == ["s/a-00000000.jsonl", "s/a-00000001.jsonl"]
    assert content(bucket, "s/") == [b"one\n", b"two\n"]


def test_later_writer_continues_the_numbers(bucket: Bucket) -> None:
    for line in (b"one", b"two"):
        with ChunkWriter(bucket, "s/a-") as writer:
            writer.write_line(line)
    assert content(bucket, "s/") == [b"one\n", b"two\n"]


def test_failed_write_is_repeated_with_the_next_flush(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = ChunkWriter(bucket, "s/a-")
    writer.write_line(b"one")
    with monkeypatch.context() as broken:
        broken.setattr(bucket, "write", lambda *_: (_ for _ in ()).throw(OSError("unavailable")))
        with pytest.raises(OSError, match="unavailable"):
            writer.flush()
    writer.write_line(b"two")
    writer.close()
    assert content(bucket, "s/") == [b"one\ntwo\n"]


def test_tail_forwards_complete_lines_and_finally_the_rest(bucket: Bucket, tmp_path: Path) -> None:
    file = tmp_path / "log"
    with ChunkWriter(bucket, "s/a-") as writer:
        tail = FileTail(file, writer)
        tail.forward()
        file.write_bytes(b"one\ntw")
        tail.forward()
        writer.flush()
        assert content(bucket, "s/") == [b"one\n"]
        tail.forward(final=True)
    assert b"".join(content(bucket, "s/")) == b"one\ntw\n"


def test_tail_of_a_later_writer_continues_after_a_kill(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed process has lines that it has not written to S3, and the file may have a line without an end."""
    monkeypatch.setattr(streams, "FLUSH_SECONDS", 600.0)
    file = tmp_path / "log"
    file.write_bytes(b"one\rtwo\nthr")
    killed = ChunkWriter(bucket, "s/a-")
    tail = FileTail(file, killed)
    tail.forward()
    killed.flush()
    file.write_bytes(b"one\rtwo\nthree\nfour\n")
    tail.forward()
    with ChunkWriter(bucket, "s/a-") as writer:
        FileTail(file, writer).forward()
    assert b"".join(content(bucket, "s/")) == b"one\ntwo\nthree\nfour\n"


def test_line_across_two_blocks_is_not_split(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "CHUNK_BYTES", 8)
    file = tmp_path / "log"
    file.write_bytes(b"one\ntwo\nthree\nfour")
    with ChunkWriter(bucket, "s/a-") as writer:
        FileTail(file, writer).forward(final=True)
    assert b"".join(content(bucket, "s/")) == b"one\ntwo\nthree\nfour\n"


def test_line_without_end_is_forwarded_in_blocks(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "CHUNK_BYTES", 4)
    file = tmp_path / "log"
    file.write_bytes(b"abcdefghij")
    with ChunkWriter(bucket, "s/a-") as writer:
        FileTail(file, writer).forward()
    assert b"".join(content(bucket, "s/")) == b"abcd\nefgh\n"


@pytest.fixture
def outage(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, ChunkWriter]]:
    """A file of the job, and the writer of its lines, of which none reach S3 while the job runs."""
    monkeypatch.setattr(streams, "CHUNK_BYTES", 16)
    monkeypatch.setattr(streams, "BACKLOG_BYTES", 64)
    monkeypatch.setattr(streams, "FLUSH_SECONDS", 600.0)
    with ChunkWriter(bucket, "s/a-") as writer:
        yield tmp_path / "log", writer


def forward_lines(file: Path, writer: ChunkWriter, lines: list[str]) -> list[str]:
    """Lines in S3 of a job that has written more and more lines."""
    tail = FileTail(file, writer)
    for count in range(1, len(lines)):
        file.write_text("".join(lines[:count]))
        tail.forward()
    file.write_text("".join(lines))
    tail.forward(final=True)
    writer.flush()
    return b"".join(content(writer._bucket, "s/")).decode().splitlines(keepends=True)


def test_the_end_of_a_log_is_written_after_an_outage(outage: tuple[Path, ChunkWriter]) -> None:
    lines = [f"{number:04d}\n" for number in range(1000)]
    written = forward_lines(*outage, lines)
    (notice,) = set(written) - set(lines)
    first = written.index(notice)
    last = len(written) - first - 1
    assert (written[:first], written[first + 1 :]) == (lines[:first], lines[-last:])
    assert last == streams.FORWARD_CHUNKS * streams.CHUNK_BYTES // 5  # complete lines of five bytes
    assert notice.startswith(f"[trainyard: {5 * (1000 - first - last)} bytes of this log are skipped: ")


def test_a_backlog_skips_nothing_if_the_rest_is_short(outage: tuple[Path, ChunkWriter]) -> None:
    lines = [f"{number:04d}\n" for number in range(30)]
    assert forward_lines(*outage, lines) == lines


def test_a_log_without_limit_needs_limited_memory(outage: tuple[Path, ChunkWriter]) -> None:
    file, writer = outage
    with file.open("wb") as log:
        log.truncate(1 << 40)
    FileTail(file, writer).forward(final=True)
    assert writer.backlog < 2 * streams.FORWARD_CHUNKS * streams.CHUNK_BYTES


def test_denied_write_is_not_retried_as_long_as_an_outage(
    account: EmulatedAws, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node may outlive its role."""
    monkeypatch.setattr(streams, "REFUSED_SECONDS", 0.0)
    monkeypatch.setattr(streams, "FLUSH_SECONDS", 0.05)
    writer = ChunkWriter(bucket, "a-")
    account.inject(Deny(operation="s3:PutObject"))
    try:
        writer.write_line(b"last line")
        with pytest.raises(ClientError, match="AccessDenied"):
            writer.close()
    finally:
        account.clear_faults()
