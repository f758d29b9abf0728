"""Download objects of the data bucket.

A file has the modification time of its object. A repeated download keeps the files whose size and time are those of
their objects, so that it continues one that was interrupted. An ETag is no checksum of objects that KMS encrypts.
"""

import shutil
from collections.abc import Iterable
from os.path import commonpath
from pathlib import Path, PurePosixPath

from rich.filesize import decimal

from trainyard.aws.s3 import Bucket, StoredObject
from trainyard.errors import InputError, Problem
from trainyard.operations.progress import Display, TransferProgress
from trainyard.operations.restore import archived_problem
from trainyard.quantity import quantity


def download(
    data: Bucket, objects: Iterable[StoredObject], prefix: str, folder: Path, display: Display
) -> tuple[str, ...]:
    """Download objects to `folder`; return the names of all their files, which are the keys after `prefix`.

    Raises InputError when an object is archived, its name is not one below the folder, or the disk has no space.
    """
    names = {stored.key.removeprefix(prefix): stored for stored in objects if not stored.key.endswith("/")}
    for name in names:
        if ".." in PurePosixPath(name).parts or name.startswith("/"):
            reason, fix = "its file would be outside of the folder", "Delete or rename the object"
            raise InputError([Problem("object", f"s3://{data.name}/{prefix}{name}", reason, fix, "unsafe_name")])
    missing = {stored: folder / name for name, stored in names.items() if not _is_current(folder / name, stored)}
    if not missing:
        return tuple(names)
    _require_restored(data, list(missing))
    total = sum(stored.size for stored in missing)
    _require_space(folder, total)
    kept = f", {quantity(len(names) - len(missing), 'file')} present" if len(missing) < len(names) else ""
    display.line("download", f"{quantity(len(missing), 'file')}, {decimal(total)}, to {folder}{kept}")
    data.download_all(missing, TransferProgress(display, "download", total).add)
    return tuple(names)


def _is_current(file: Path, stored: StoredObject) -> bool:
    try:
        state = file.stat()
    except FileNotFoundError:
        return False
    return state.st_size == stored.size and int(state.st_mtime) == int(stored.modified)


def _require_restored(data: Bucket, objects: list[StoredObject]) -> None:
    prefix = objects[0].key if len(objects) == 1 else f"{commonpath([stored.key for stored in objects])}/"
    if problem := archived_problem(data, objects, prefix, next_command="download"):
        raise InputError([Problem("object", f"s3://{data.name}/{prefix}", *problem, "archived")])


def _require_space(folder: Path, size: int) -> None:
    existing = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.is_dir())
    if size > (free := shutil.disk_usage(existing).free):
        reason = f"the files have {decimal(size)}, and {decimal(free)} are free"
        raise InputError([Problem("--to", str(folder), reason, "Name a folder on a larger disk", "disk_full")])
