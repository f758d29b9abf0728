"""Pack the source folder of a custom job. Files with secrets are refused."""

import stat
from pathlib import Path, PurePosixPath

from infra.packaging.archive import Entry, Packed, pack
from infra.packaging.source_files import IGNORE_FILE, source_files
from trainyard.config.secret_patterns import contains_private_key, is_secret_file
from trainyard.config.validation_errors import invalid_setting
from trainyard.errors import InputError, Problem

LIMIT_BYTES = 64 * 1024 * 1024


def pack_source(root: Path, source: str, script: str | None = None) -> Packed:
    """Pack the folder `source`, relative to the folder `root` of the project.

    `script`: a file that the job needs. Raises InputError with each file that must not be uploaded, and when an ignore
    file excludes the script.
    """
    folder = root / source
    entries: dict[str, Entry] = {}
    problems: list[Problem] = []
    total = 0
    for name in source_files(folder, root):
        path = folder / name
        reason = _refusal(folder, PurePosixPath(name))
        if reason:
            fix = f"Remove it, or add it to {source}/{IGNORE_FILE}. A job reads secrets from job.secrets"
            problems.append(invalid_setting("job.source", f"{source}/{name}", reason, fix, "source_file_refused"))
            continue
        total += path.stat().st_size
        if total > LIMIT_BYTES:
            problems.append(_too_large(source, name))
            break
        entries[name] = Entry(path.read_bytes(), executable=bool(path.stat().st_mode & stat.S_IXUSR))
    if script and not problems and Path(script).as_posix() not in entries:
        reason = f".gitignore or {IGNORE_FILE} excludes it from {source}"
        fix = "Remove the pattern, or name another script"
        problems.append(invalid_setting("job.command", script, reason, fix, "script_ignored"))
    if problems:
        raise InputError(problems)
    return pack(entries)


def _refusal(folder: Path, name: PurePosixPath) -> str | None:
    """Return why a file must not be uploaded, or None."""
    path = folder / name
    if is_secret_file(name):
        return "may contain secrets, and every node downloads the archive"
    if not path.resolve().is_relative_to(folder.resolve()):
        return "is a symbolic link to a path outside the folder"
    if not path.is_file():
        return "is not a regular file"
    # A larger file is refused by its size.
    if path.stat().st_size <= LIMIT_BYTES and contains_private_key(path.read_bytes()):
        return "contains a private key, and every node downloads the archive"
    return None


def _too_large(source: str, name: str) -> Problem:
    reason = f"contains more than {LIMIT_BYTES // 2**20} MiB (counted up to {name})"
    fix = f"Keep data in the data bucket, and list files other than code in .gitignore or {source}/{IGNORE_FILE}"
    return invalid_setting("job.source", source, reason, fix, "source_too_large")
