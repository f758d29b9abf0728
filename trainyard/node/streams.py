"""Streams to S3 as numbered chunks, because S3 objects cannot be appended to: they outlive the node."""

import logging
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from botocore.exceptions import ClientError

from trainyard.aws.s3 import Bucket
from trainyard.base import StrictModel
from trainyard.models.layout import chunk_key
from trainyard.node.job_user import open_job_file

FLUSH_SECONDS = 2.0
CHUNK_BYTES = 4 << 20
# A job may write faster than S3 accepts: one call reads so many chunks, and none while as many bytes wait for S3. The
# last call reads so many at the end of the file, which explain why the job has ended, also while bytes wait.
FORWARD_CHUNKS, BACKLOG_BYTES = 8, 64 << 20
OFFSET = "offset"  # metadata of a chunk from a file
CLOSE_SECONDS = 120.0  # a writer that closes survives an S3 outage of this length
# A new role may not be known everywhere yet; a deleted role stays deleted.
REFUSED_SECONDS = 20.0
LOG = logging.getLogger("streams")


class ChunkWriter:
    """Collects lines and writes them to S3 every two seconds, in order, as `<prefix><seq>.jsonl`.

    A later writer with the same prefix continues with the next number. A failed write is repeated with the next flush.
    `close` writes the remaining lines and retries for CLOSE_SECONDS, or for REFUSED_SECONDS if S3 denies access.
    `latest`: key of an object that contains the newest line; None: no such object. `offset`: end of the newest line in
    the file from which the lines come. Each chunk stores it, so that a later writer continues there: S3 writes both at
    once, and a process that is killed leaves no line out and writes none twice.
    """

    def __init__(self, bucket: Bucket, prefix: str, latest: str | None = None) -> None:
        self._bucket, self._prefix, self._latest = bucket, prefix, latest
        keys = list(bucket.keys(prefix))
        self._seq = len(keys)
        self.offset = int(bucket.metadata(keys[-1]).get(OFFSET, 0)) if keys else 0
        self._lines: list[bytes] = []
        self.backlog = 0  # bytes that are not written yet
        self._lock, self._flushing = threading.Lock(), threading.Lock()
        self._closing, self._wake = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"chunks {prefix}", daemon=True)
        self._thread.start()

    def write_line(self, line: bytes) -> None:
        """Add one line to the next chunk."""
        self.write_lines([line], self.offset)

    def write_lines(self, lines: Iterable[bytes], offset: int) -> None:
        """Add lines to the next chunk. `offset`: end of the last of them in their file."""
        with self._lock:
            added = [line.rstrip(b"\n") + b"\n" for line in lines]
            self._lines += added
            self.backlog += sum(map(len, added))
            self.offset = offset

    def write_event(self, event: StrictModel) -> None:
        """Add one event, as a JSON line, to the next chunk."""
        self.write_line(event.model_dump_json().encode())

    def flush(self) -> None:
        """Write all lines to S3 now. Raises the error of S3; the lines are kept for the next flush."""
        with self._flushing:
            with self._lock:
                lines, self._lines, offset = self._lines, [], self.offset
            if not lines:
                return
            content = b"".join(lines)
            try:
                self._bucket.write(chunk_key(self._prefix, self._seq), content, {OFFSET: str(offset)})
                if self._latest is not None:
                    self._bucket.write(self._latest, lines[-1])
            except Exception:
                with self._lock:
                    self._lines = lines + self._lines
                raise
            self._seq += 1
            with self._lock:
                self.backlog -= len(content)

    def try_flush(self) -> None:
        """Write all lines to S3 now; log an error of S3 and keep the lines for the next flush."""
        try:
            self.flush()
        except Exception as error:
            LOG.warning("%s: %s", self._prefix, error)

    def request_flush(self) -> None:
        """Write all lines to S3 in the writer's thread as soon as it can."""
        self._wake.set()

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wake.wait(FLUSH_SECONDS)
            self._wake.clear()
            self.try_flush()

    def close(self) -> None:
        """Write the remaining lines. Raises the error of S3 if that fails until the deadline."""
        self._closing.set()
        self._wake.set()
        self._thread.join()
        started_at = time.monotonic()
        while True:
            try:
                return self.flush()
            except Exception as error:
                if time.monotonic() > started_at + (REFUSED_SECONDS if is_refused(error) else CLOSE_SECONDS):
                    raise
                time.sleep(FLUSH_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def is_refused(error: Exception) -> bool:
    """Whether S3 denied the request: the bucket or the permission does not exist."""
    if not isinstance(error, ClientError):
        return False
    return error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") in {401, 403, 404}


def last_line_end(block: bytes) -> int:
    """Offset after the last line end in `block`; 0 if there is none."""
    return max(block.rfind(b"\n"), block.rfind(b"\r")) + 1


class FileTail:
    """Follows one growing file of the job from the writer's offset and passes its complete lines to the writer."""

    def __init__(self, file: Path, writer: ChunkWriter) -> None:
        self._file, self._writer = file, writer
        self._is_refused = False

    def forward(self, final: bool = False) -> None:
        """Write the lines since the last call, FORWARD_CHUNKS at most, or none while many bytes wait for S3.

        `final`: the file has ended. Write its last FORWARD_CHUNKS, with a line that has the number of bytes before them
        that it skips, if any, and a last line without a line end.
        """
        try:
            stream = open_job_file(self._file)
        except FileNotFoundError:
            return
        except OSError as error:
            if not self._is_refused:
                LOG.warning("not copied: %s", error)
            self._is_refused = True
            return
        with stream:
            if final:
                self._forward_end(stream)
                return
            for _ in range(FORWARD_CHUNKS):
                if self._writer.backlog > BACKLOG_BYTES or not self._forward_block(stream):
                    break

    def _forward_end(self, stream: BinaryIO) -> None:
        size = os.fstat(stream.fileno()).st_size
        start = size - FORWARD_CHUNKS * CHUNK_BYTES
        if start > self._writer.offset:
            stream.seek(start)
            start += stream.read(CHUNK_BYTES).find(b"\n") + 1
            omitted = start - self._writer.offset
            text = f"{omitted} bytes of this log are skipped: the job wrote faster than S3 accepted"
            self._writer.write_lines([f"[trainyard: {text}]".encode()], start)
        while self._writer.offset < size and self._forward_block(stream, final=True):
            pass

    def _forward_block(self, stream: BinaryIO, final: bool = False) -> bool:
        """Write the lines of the next block; return whether it is full, so that another may follow."""
        stream.seek(self._writer.offset)
        block = stream.read(CHUNK_BYTES)
        full = len(block) == CHUNK_BYTES
        # A progress bar ends its lines with a carriage return. A full block without a line end is one line.
        end = len(block) if final and not full else last_line_end(block) or (len(block) if full else 0)
        self._writer.write_lines(block[:end].splitlines(), self._writer.offset + end)
        return full
