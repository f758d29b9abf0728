"""The journal: one JSON line per API call, in the order of the responses."""

import threading
import time
from pathlib import Path
from typing import Any

from pydantic import Field

from rehearsal.aws.operations import Call, parse_error
from trainyard.base import StrictModel

ROLE = "trainyard.role"  # key of the WSGI environment where the server stores the caller's role name


class JournalEntry(StrictModel):
    """One API call and its response."""

    seq: int = Field(description="Position in the journal, from 1.")
    time: float = Field(description="Unix time of the response, seconds.")
    service: str = Field(description="Service as in IAM, e.g. ec2.")
    operation: str = Field(description="API operation, e.g. CreateVpc.")
    access_key: str | None = Field(description="Access key that signed the call; none for an unsigned call.")
    role: str | None = Field(description="Name of the role whose session made the call; none for any other caller.")
    urn: str | None = Field(
        description="Header x-trainyard-urn: the Pulumi resource on whose behalf the call was made."
    )
    status: int = Field(description="HTTP status.")
    error_code: str | None = Field(description="AWS's error code; none when the call succeeded.")
    error_message: str | None = Field(description="AWS's error message; none when the call succeeded.")
    mutating: bool = Field(description="Whether the operation is other than Describe*, Get*, List* and Head*.")


class Journal:
    """Writer of the journal. Each entry is in the file before the caller receives its response."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("a", encoding="utf-8")
        self._lock = threading.Lock()
        self._seq = 0

    def write(self, call: Call, environ: dict[str, Any], status: int, body: bytes) -> None:
        """Append the entry of one call. `environ` is its WSGI environment, `body` its response body."""
        code, message = parse_error(status, body) if status >= 400 else (None, None)
        with self._lock:
            self._seq += 1
            entry = JournalEntry(
                seq=self._seq,
                time=time.time(),
                service=call.service,
                operation=call.operation,
                access_key=call.access_key,
                role=environ.get(ROLE),
                urn=environ.get("HTTP_X_TRAINYARD_URN"),
                status=status,
                error_code=code,
                error_message=message,
                mutating=call.mutating,
            )
            self._file.write(entry.model_dump_json() + "\n")
            self._file.flush()


def read_journal(path: Path) -> list[JournalEntry]:
    """Return all entries of a journal file, without a last line that is incomplete."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    return [JournalEntry.model_validate_json(line) for line in lines if line.endswith("\n")]
