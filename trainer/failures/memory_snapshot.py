"""A snapshot of the GPU allocator when memory runs out: which code allocated the memory that is in use."""

import logging
import tempfile
import threading
from pathlib import Path

import torch

from trainer.storage import Storage

UPLOAD_TIMEOUT_SECONDS = 60.0
_MAX_ENTRIES = 100_000  # newest allocations and frees, some KB each: the default has no limit
_log = logging.getLogger(__name__)


class MemorySnapshot:
    """Records the allocations on this process's GPU, and saves them for pytorch.org/memory_viz."""

    def __init__(self, results: Storage, rank: int) -> None:
        self._results, self._key = results, f"profiles/memory-rank-{rank}.pickle"

    def start(self) -> None:
        """Record the Python stack of each allocation and free, which takes 2 microseconds (torch's documentation)."""
        torch.cuda.memory._record_memory_history(stacks="python", max_entries=_MAX_ENTRIES)

    def save(self) -> str | None:
        """Write the snapshot to the results. Returns its URI; None if that failed, which is logged.

        Waits at most UPLOAD_TIMEOUT_SECONDS, in which the other ranks wait for this rank.
        """
        errors: list[Exception] = []
        thread = threading.Thread(target=self._save, args=(errors,), name="memory snapshot", daemon=True)
        thread.start()
        thread.join(UPLOAD_TIMEOUT_SECONDS)
        if thread.is_alive():
            errors.append(TimeoutError(f"no response within {UPLOAD_TIMEOUT_SECONDS:.0f} s"))
        uri = self._results.uri + self._key
        if errors:
            _log.warning("%s not saved: %s", uri, errors[0])
            return None
        return uri

    def _save(self, errors: list[Exception]) -> None:
        try:
            with tempfile.TemporaryDirectory(prefix="trainyard-memory-") as folder:
                file = Path(folder) / "memory.pickle"
                torch.cuda.memory._dump_snapshot(str(file))  # type: ignore[no-untyped-call]
                self._results.upload(file, self._key, threads=False)
        except Exception as error:  # the message about the memory is more important
            errors.append(error)


def memory_snapshot(results: Storage, rank: int, device: torch.device, *, enabled: bool) -> MemorySnapshot | None:
    """Return the recorder of the allocations of a rank if it is enabled; None on CPUs."""
    return MemorySnapshot(results, rank) if enabled and device.type == "cuda" else None
