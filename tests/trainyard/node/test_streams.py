"""What a node writes to S3, it writes in order, once, and after it failed again."""

from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from rehearsal.aws.faults import Deny
from rehearsal.aws.process import EmulatedAws
from trainyard.aws.s3 import Bucket
from trainyard.node import streams as chunks
from trainyard.node.streams import ChunkWriter, Tail


def content(bucket: Bucket, prefix: str) -> list[bytes]:
    return [bucket.read(key) for key in bucket.keys(prefix)]


def test_lines_come_out_in_numbered_chunks(bucket: Bucket) -> None:
    with ChunkWriter(bucket, "s/a-") as writer:
        writer.add(b"one")
        writer.flush()
        writer.add(b"two\n")
    assert list(bucket.keys("s/")) == ["s/a-00000000.jsonl", "s/a-00000001.jsonl"]
    assert content(bucket, "s/") == [b"one\n", b"two\n"]


def test_a_later_writer_goes_on_with_the_number(bucket: Bucket) -> None:
    for line in (b"one", b"two"):
        with ChunkWriter(bucket, "s/a-") as writer:
            writer.add(line)
    assert content(bucket, "s/") == [b"one\n", b"two\n"]


def test_a_failed_put_loses_nothing(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = ChunkWriter(bucket, "s/a-")
    writer.add(b"one")
    with monkeypatch.context() as broken:
        broken.setattr(bucket, "write", lambda *_: (_ for _ in ()).throw(OSError("away")))
        with pytest.raises(OSError, match="away"):
            writer.flush()
    writer.add(b"two")
    writer.close()
    assert content(bucket, "s/") == [b"one\ntwo\n"]


def test_a_tail_takes_complete_lines_and_at_last_the_rest(bucket: Bucket, tmp_path: Path) -> None:
    file = tmp_path / "log"
    with ChunkWriter(bucket, "s/a-") as writer:
        tail = Tail(file, writer)
        tail.pump()
        file.write_bytes(b"one\ntw")
        tail.pump()
        writer.flush()
        assert content(bucket, "s/") == [b"one\n"]
        tail.pump(last=True)
    assert b"".join(content(bucket, "s/")) == b"one\ntw\n"


def test_a_line_is_never_cut_where_a_piece_ends(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 8)
    file = tmp_path / "log"
    file.write_bytes(b"one\ntwo\nthree\nfour")
    with ChunkWriter(bucket, "s/a-") as writer:
        Tail(file, writer).pump(last=True)
    assert b"".join(content(bucket, "s/")) == b"one\ntwo\nthree\nfour\n"


def test_a_line_that_never_ends_is_shipped_in_pieces(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 4)
    file = tmp_path / "log"
    file.write_bytes(b"abcdefghij")
    with ChunkWriter(bucket, "s/a-") as writer:
        Tail(file, writer).pump()
    assert b"".join(content(bucket, "s/")) == b"abcd\nefgh\n"


def test_a_refusal_is_not_waited_for_as_an_outage_is(
    account: EmulatedAws, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a node that outlives its role."""
    monkeypatch.setattr(chunks, "REFUSED_SECONDS", 0.0)
    monkeypatch.setattr(chunks, "FLUSH_SECONDS", 0.05)
    writer = ChunkWriter(bucket, "a-")
    account.inject(Deny(operation="s3:PutObject"))
    try:
        writer.add(b"last words")
        with pytest.raises(ClientError, match="AccessDenied"):
            writer.close()
    finally:
        account.clear_faults()
