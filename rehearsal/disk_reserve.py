"""Room on the disk that a rehearsal keeps back: where the disk fills up, it still takes down what it made."""

import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import Self

RESERVE_BYTES = 8 * 2**20
FULL_BYTES = 2**20  # with less than this free, a write of ours may have failed


class Reserve:
    """A file of RESERVE_BYTES in `folder`, while it is entered."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._file = folder, folder / "reserve"

    def gives_way(self) -> bool:
        """Whether the disk is full and the reserve was still there: it is free then."""
        if not self._file.exists() or shutil.disk_usage(self._folder).free >= FULL_BYTES:
            return False
        self._file.unlink()
        return True

    def __enter__(self) -> Self:
        with self._file.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.unlink(missing_ok=True)
