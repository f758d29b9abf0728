"""Pack the source folder of a custom job. Files with secrets are refused."""

import fnmatch
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from infra.packaging.archive import Entry, Packed, pack
from trainyard.config.validation_errors import invalid_setting
from trainyard.errors import InputError, Problem

IGNORE_FILE = ".trainyardignore"
LIMIT_BYTES = 64 * 1024 * 1024
_ALWAYS_IGNORED = (".git/", "__pycache__/", "*.pyc", ".venv/", IGNORE_FILE)
_SECRET_NAMES = (".env", ".env.*", ".netrc", "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519")
_KEY_MARKER = b"PRIVATE KEY-----"
_MARKER_BYTES = 4096


def pack_source(root: Path, source: str) -> Packed:
    """Pack the folder `source` below `root`. Raises InputError with each file that must not be uploaded.

    `.trainyardignore` has one glob per line, matched against names and relative paths as in .gitignore: a trailing
    slash matches folders only, `#` starts a comment.
    """
    folder = root / source
    entries: dict[str, Entry] = {}
    problems: list[Problem] = []
    total = 0
    for path in sorted(_files(folder, folder, _patterns(folder))):
        name = path.relative_to(folder).as_posix()
        reason = _refusal(folder, path)
        if reason:
            fix = f"Remove it, or add it to {source}/{IGNORE_FILE}"
            problems.append(invalid_setting("job.source", f"{source}/{name}", reason, fix, "source_file_refused"))
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
    globs = [line.strip() for line in lines]
    return [*_ALWAYS_IGNORED, *(line for line in globs if line and not line.startswith("#"))]


def _files(folder: Path, parent: Path, patterns: list[str]) -> Iterator[Path]:
    for entry in os.scandir(parent):
        path = Path(entry.path)
        is_folder = entry.is_dir(follow_symlinks=False)
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
    """Return why a file must not be uploaded, or None."""
    if any(fnmatch.fnmatchcase(path.name, pattern) for pattern in _SECRET_NAMES):
        return "may contain secrets, and every node downloads the archive"
    if not path.is_file():
        return "is not a regular file"
    if not path.resolve().is_relative_to(folder.resolve()):
        return "is a symbolic link to a file outside the folder"
    with path.open("rb") as file:
        if _KEY_MARKER in file.read(_MARKER_BYTES):
            return "contains a private key, and every node downloads the archive"
    return None


def _too_large(source: str, name: str) -> Problem:
    reason = f"contains more than {LIMIT_BYTES // 2**20} MiB (counted up to {name})"
    fix = f"Keep data in the data bucket, and list files other than code in {source}/{IGNORE_FILE}"
    return invalid_setting("job.source", source, reason, fix, "source_too_large")
