"""The work folder: the results of an interrupted run, from which the same command resumes.

`settings.json` has the settings of the run. `parts/FINGERPRINT.json` has the result of a part and is written after its
shard. `parts/FINGERPRINT.held-out` has the held-out samples of a part, until they are merged at the end. All other
files are temporary.
"""

import fcntl
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any, TextIO

from pydantic import ValidationError

from trainer.prepare.partitioning import PartResult
from trainyard.errors import InputError, Problem

_SETTINGS = "settings.json"
_OBSOLETE = "obsolete.json"


def default_work_path(target: str) -> Path:
    """Return the default path of the work folder in the user's cache, one per target."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "trainyard" / "prepare" / hashlib.sha256(target.encode()).hexdigest()[:16]


class WorkFolder:
    """The work folder of a run, locked while it is open. `status` is a message about its previous state."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        """Open or create the folder. If its run had other settings, clear it.

        Raises InputError if the path can't be written, another process uses it, or it has other files.
        """
        self.path = path
        self._lock = self._acquire_lock()
        previous = self._previous_settings()
        settings = json.loads(json.dumps(settings))
        if previous == settings:
            self.status = f"resuming in {path}"
        else:
            if previous is not None:
                changed = sorted(key for key in previous | settings if previous.get(key) != settings.get(key))
                self.status = f"{path} is of a run with other settings ({', '.join(changed)}): starting from scratch"
            else:
                self.status = f"work folder {path}"
            self._clear()
            _write_atomically(path / _SETTINGS, json.dumps(settings, indent=1))
        self.temporary.mkdir(exist_ok=True)
        for file in self.temporary.iterdir():  # of an interrupted run
            file.unlink()
        (path / "parts").mkdir(exist_ok=True)

    @property
    def temporary(self) -> Path:
        """Folder for temporary files."""
        return self.path / "temporary"

    def read_result(self, fingerprint: str) -> PartResult | None:
        """Return the result of a part; None if the part is not complete."""
        try:
            return PartResult.model_validate_json((self.path / "parts" / f"{fingerprint}.json").read_bytes())
        except (FileNotFoundError, ValidationError):
            return None

    def delete(self) -> None:
        """Delete the folder, when the dataset is complete."""
        self._lock.close()
        shutil.rmtree(self.path)

    def close(self) -> None:
        """Release the lock."""
        self._lock.close()

    def _acquire_lock(self) -> TextIO:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / "lock").open("w")
        except OSError as error:
            reason = f"can't be written: {error.strerror}"
            raise InputError([self._problem(reason, "Name another folder", "folder_not_writable")]) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            reason = "another process is preparing this target"
            raise InputError(
                [self._problem(reason, "Wait until it finishes, or stop it", "work_folder_in_use")]
            ) from None
        return lock

    def _previous_settings(self) -> Any:
        try:
            return json.loads((self.path / _SETTINGS).read_bytes())
        except FileNotFoundError:
            if any(entry.name != "lock" for entry in self.path.iterdir()):
                self._lock.close()
                raise InputError(
                    [self._problem("holds other files", "Name an empty folder", "folder_not_empty")]
                ) from None
            return None
        except ValueError:
            return {}

    @property
    def obsolete_keys(self) -> set[str]:
        """Keys of shards in the target that interrupted runs with other settings have uploaded."""
        try:
            return set(json.loads((self.path / _OBSOLETE).read_bytes()))
        except (FileNotFoundError, ValueError):
            return set()

    def _clear(self) -> None:
        results = [self.read_result(file.stem) for file in (self.path / "parts").glob("*.json")]
        keys = self.obsolete_keys | {result.shard.key for result in results if result and result.shard}
        _write_atomically(self.path / _OBSOLETE, json.dumps(sorted(keys)))
        for name in ("parts", "temporary"):
            shutil.rmtree(self.path / name, ignore_errors=True)
        for file in self.path.glob("*.json"):
            if file.name != _OBSOLETE:
                file.unlink()

    def _problem(self, reason: str, fix: str, code: str) -> Problem:
        return Problem("--work", str(self.path), reason, fix, code)


def write_result(folder: Path, fingerprint: str, result: PartResult) -> None:
    """Mark a part as complete, atomically, after its shard and its held-out file are written."""
    _write_atomically(folder / "parts" / f"{fingerprint}.json", result.model_dump_json())


def held_out_path(folder: Path, fingerprint: str) -> Path:
    """Return the path of the held-out samples of a part."""
    return folder / "parts" / f"{fingerprint}.held-out"


def _write_atomically(target: Path, text: str) -> None:
    partial = target.with_suffix(".partial")
    partial.write_text(text)
    partial.rename(target)
