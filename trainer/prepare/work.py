"""The work folder: what a killed run has done, so that the same words started again go on from there.

`words.json` says what was asked for, `parts/ADDRESS.json` what came of a part, written last; `parts/ADDRESS.held-out`
is what it holds out, until that is put together at the end. All else there is temporary.
"""

import fcntl
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any, TextIO

from pydantic import ValidationError

from trainer.prepare.parts import Made
from trainyard.base import InputError, Problem

_WORDS = "words.json"
_ABANDONED = "abandoned.json"


def default_folder(target: str) -> Path:
    """One a target, in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "trainyard" / "prepare" / hashlib.sha256(target.encode()).hexdigest()[:16]


class Work:
    """Holds a lock on the folder as long as it is open. `said` tells how it stood there, in words."""

    def __init__(self, folder: Path, words: dict[str, Any]) -> None:
        self.folder = folder
        self._lock = self._locked()
        before = self._before()
        words = json.loads(json.dumps(words))
        if before == words:
            self.said = f"goes on in {folder}"
        else:
            if before is not None:
                changed = sorted(key for key in before | words if before.get(key) != words.get(key))
                self.said = f"{folder} was begun with other words ({', '.join(changed)}): begun anew"
            else:
                self.said = f"work folder {folder}"
            self._clear()
            _write(folder / _WORDS, json.dumps(words, indent=1))
        self.temporary.mkdir(exist_ok=True)
        for left in self.temporary.iterdir():  # by a killed run
            left.unlink()
        (folder / "parts").mkdir(exist_ok=True)

    @property
    def temporary(self) -> Path:
        return self.folder / "temporary"

    def made(self, address: str) -> Made | None:
        """What came of a part; none where it is not done."""
        try:
            return Made.model_validate_json((self.folder / "parts" / f"{address}.json").read_bytes())
        except (FileNotFoundError, ValidationError):
            return None

    def finish(self) -> None:
        """The dataset is whole: the folder goes."""
        self._lock.close()
        shutil.rmtree(self.folder)

    def close(self) -> None:
        self._lock.close()

    def _locked(self) -> TextIO:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = (self.folder / "lock").open("w")
        except OSError as error:
            why = f"can't be written: {error.strerror}"
            raise InputError([self._problem(why, "Name another folder")]) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            why = "another process is at work on this target"
            raise InputError([self._problem(why, "Let it finish, or end it")]) from None
        return lock

    def _before(self) -> Any:
        try:
            return json.loads((self.folder / _WORDS).read_bytes())
        except FileNotFoundError:
            if any(entry.name != "lock" for entry in self.folder.iterdir()):
                self._lock.close()
                why = "holds other files"
                raise InputError([self._problem(why, "Name an empty folder")]) from None
            return None
        except ValueError:
            return {}

    @property
    def abandoned(self) -> set[str]:
        """Keys of shards in the target that runs with other words had made."""
        try:
            return set(json.loads((self.folder / _ABANDONED).read_bytes()))
        except (FileNotFoundError, ValueError):
            return set()

    def _clear(self) -> None:
        made = [self.made(file.stem) for file in (self.folder / "parts").glob("*.json")]
        keys = self.abandoned | {one.shard.key for one in made if one and one.shard}
        _write(self.folder / _ABANDONED, json.dumps(sorted(keys)))
        for name in ("parts", "temporary"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        for file in self.folder.glob("*.json"):
            if file.name != _ABANDONED:
                file.unlink()

    def _problem(self, why: str, fix: str) -> Problem:
        return Problem(key="--work", value=str(self.folder), why=why, fix=fix)


def record(folder: Path, address: str, made: Made) -> None:
    """A part is done: in one step, after its shard and what it holds out."""
    _write(folder / "parts" / f"{address}.json", made.model_dump_json())


def held_out_file(folder: Path, address: str) -> Path:
    return folder / "parts" / f"{address}.held-out"


def _write(target: Path, text: str) -> None:
    partial = target.with_suffix(".partial")
    partial.write_text(text)
    partial.rename(target)
