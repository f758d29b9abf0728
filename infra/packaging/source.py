"""The folder of the user's own job as an archive. What should never leave the operator's machine is refused."""

import fnmatch
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from infra.packaging.archive import Entry, Packed, pack
from trainyard.base import CONFIG_KEY, InputError, Problem

IGNORE_FILE = ".trainyardignore"
LIMIT_BYTES = 64 * 1024 * 1024
_ALWAYS_IGNORED = (".git/", "__pycache__/", "*.pyc", ".venv/", IGNORE_FILE)
_SECRET_NAMES = (".env", ".env.*", ".netrc", "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519")
_KEY_MARK = b"PRIVATE KEY-----"
_MARK_WITHIN = 4096


def pack_source(root: Path, source: str) -> Packed:
    """Archive the folder `source` below `root`. Raises InputError naming each file that can't be shipped.

    `.trainyardignore` holds one glob a line, matched against names and paths relative to the folder, as in .gitignore:
    a trailing slash means folders only, `#` begins a comment.
    """
    folder = root / source
    entries: dict[str, Entry] = {}
    problems: list[Problem] = []
    total = 0
    for path in sorted(_files(folder, folder, _patterns(folder))):
        name = path.relative_to(folder).as_posix()
        why = _refusal(folder, path)
        if why:
            fix = f"Remove it, or name it in {source}/{IGNORE_FILE}"
            problems.append(Problem(key=f"{CONFIG_KEY}.job.source", value=f"{source}/{name}", why=why, fix=fix))
            continue
        total += path.stat().st_size
        if total > LIMIT_BYTES:
            problems.append(_too_large(source, name))
            break
        entries[name] = Entry(path.read_bytes(), executable=bool(path.stat().st_mode & stat.S_IXUSR))
    if problems:
        raise InputError(problems)
    return pack(entries)


def _patterns(folder: Path) -> list[str]:
    file = folder / IGNORE_FILE
    lines = file.read_text().splitlines() if file.is_file() else []
    wished = [line.strip() for line in lines]
    return [*_ALWAYS_IGNORED, *(line for line in wished if line and not line.startswith("#"))]


def _files(folder: Path, below: Path, patterns: list[str]) -> Iterator[Path]:
    for found in os.scandir(below):
        path = Path(found.path)
        is_folder = found.is_dir(follow_symlinks=False)
        if _ignored(path.relative_to(folder).as_posix(), is_folder, patterns):
            continue
        if is_folder:
            yield from _files(folder, path, patterns)
        else:
            yield path


def _ignored(name: str, is_folder: bool, patterns: list[str]) -> bool:
    for pattern in patterns:
        if pattern.endswith("/") and not is_folder:
            continue
        glob = pattern.strip("/")
        subject = name if "/" in pattern.rstrip("/") else name.rpartition("/")[2]
        if fnmatch.fnmatchcase(subject, glob):
            return True
    return False


def _refusal(folder: Path, path: Path) -> str | None:
    """Why a file can't be shipped, or None."""
    if any(fnmatch.fnmatchcase(path.name, pattern) for pattern in _SECRET_NAMES):
        return "looks like a file of secrets, and the archive goes to every node"
    if not path.is_file():
        return "is not a plain file"
    if not path.resolve().is_relative_to(folder.resolve()):
        return "is a link out of the job's folder"
    with path.open("rb") as file:
        if _KEY_MARK in file.read(_MARK_WITHIN):
            return "holds a private key, and the archive goes to every node"
    return None


def _too_large(source: str, name: str) -> Problem:
    return Problem(
        key=f"{CONFIG_KEY}.job.source",
        value=source,
        why=f"holds more than {LIMIT_BYTES // 2**20} MiB (counted up to {name})",
        fix=f"Keep data in the dataset's bucket, and name what is not code in {source}/{IGNORE_FILE}",
    )
