"""Disk space that a rehearsal reserves so that it can still destroy its resources when the disk is full."""

import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import Self

RESERVE_BYTES = 8 * 2**20
FULL_BYTES = 2**20  # with less free space than this, a write may have failed


class DiskReserve:
    """A file of RESERVE_BYTES in `folder` that exists while the context manager is entered."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._file = folder, folder / "reserve"

    def release_if_disk_full(self) -> bool:
        """Delete the reserve file if the disk is full. Returns whether it was deleted by this call."""
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
