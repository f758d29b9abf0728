"""Streams to S3 as numbered chunks: S3 has no append, and what a node said must outlive it."""

import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from botocore.exceptions import ClientError

from trainyard.aws.s3 import Bucket
from trainyard.base import Contract
from trainyard.models.layout import chunk_key

FLUSH_SECONDS = 2.0
CHUNK_BYTES = 4 << 20
CLOSE_SECONDS = 120.0  # an outage of S3 that a writer outlives at its end
# A role that was just made may not be known everywhere yet; one that has gone does not come back.
REFUSED_SECONDS = 20.0


class ChunkWriter:
    """Collects lines and puts them to S3 every two seconds, in order, as `<prefix><seq>.jsonl`.

    A later writer under the same prefix goes on with the next number. A failed put is tried again with the next flush;
    `close` flushes what is left, trying for two minutes; for less where S3 answers and refuses.
    """

    def __init__(self, bucket: Bucket, prefix: str) -> None:
        self._bucket, self._prefix = bucket, prefix
        self._seq = sum(1 for _ in bucket.keys(prefix))
        self._lines: list[bytes] = []
        self._lock, self._flushing = threading.Lock(), threading.Lock()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"chunks {prefix}", daemon=True)
        self._thread.start()

    def add(self, line: bytes) -> None:
        with self._lock:
            self._lines.append(line.rstrip(b"\n") + b"\n")

    def tell(self, event: Contract) -> None:
        self.add(event.model_dump_json().encode())

    def flush(self) -> None:
        with self._flushing:
            with self._lock:
                lines, self._lines = self._lines, []
            if not lines:
                return
            try:
                self._bucket.write(chunk_key(self._prefix, self._seq), b"".join(lines))
            except Exception:
                with self._lock:
                    self._lines = lines + self._lines
                raise
            self._seq += 1

    def hurry(self) -> None:
        """Flush now where S3 answers; where it does not, the lines stay and a later flush takes them."""
        try:
            self.flush()
        except Exception as error:
            print(f"chunks: {self._prefix}: {error}", flush=True)

    def _run(self) -> None:
        while not self._ending.wait(FLUSH_SECONDS):
            self.hurry()

    def close(self) -> None:
        self._ending.set()
        self._thread.join()
        began = time.monotonic()
        while True:
            try:
                return self.flush()
            except Exception as error:
                if time.monotonic() > began + (REFUSED_SECONDS if refused(error) else CLOSE_SECONDS):
                    raise
                time.sleep(FLUSH_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def refused(error: Exception) -> bool:
    """Whether S3 was there and said no: the bucket or the right is missing."""
    if not isinstance(error, ClientError):
        return False
    return error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") in {401, 403, 404}


def line_end(piece: bytes) -> int:
    """Bytes up to and with the last end of a line."""
    return max(piece.rfind(b"\n"), piece.rfind(b"\r")) + 1


class Tail:
    """Follows one growing file and hands its complete lines to a writer."""

    def __init__(self, file: Path, writer: ChunkWriter) -> None:
        self._file, self._writer = file, writer
        self._offset = 0

    def pump(self, last: bool = False) -> None:
        """Take what came since the last call; with `last` also a line that has no end."""
        if not self._file.exists():
            return
        with self._file.open("rb") as stream:
            stream.seek(self._offset)
            while piece := stream.read(CHUNK_BYTES):
                full = len(piece) == CHUNK_BYTES
                # A progress bar ends its lines with a carriage return; a full piece without any end goes as it is.
                end = len(piece) if last and not full else line_end(piece) or (len(piece) if full else 0)
                for line in piece[:end].splitlines():
                    self._writer.add(line)
                self._offset += end
                if not full:
                    break
                stream.seek(self._offset)
