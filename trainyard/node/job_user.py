"""The unprivileged user of the job, and the files that it writes.

Whatever the job writes may be a link to a file of root, a named pipe or another special file: the agent, which is root,
reads these files with `open_job_file` only, and creates files in folders of the job with `create_job_file` only. The
job may also delete its folders, or replace them: the agent lists them with `list_job_folder`.
"""

import os
import pwd
import stat
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from trainyard.node.identity import ROOT

JOB_USER = "trainyard-job"  # the role `job_user` creates it
_DELETED = " (deleted)"  # proc(5), /proc/pid/fd: the file was replaced after it was opened
_ATTEMPTS = 3
_MAXIMUM_BYTES = 8 << 20


@dataclass(frozen=True)
class JobUser:
    """User and group of the job's processes."""

    name: str
    uid: int
    gid: int


def find_job_user() -> JobUser | None:
    """Return the user of the job; None on a rehearsed node without a machine, where all processes have one user.

    Raises LookupError if the user does not exist.
    """
    if Path("/") != ROOT:
        return None
    try:
        entry = pwd.getpwnam(JOB_USER)
    except KeyError:
        raise LookupError(
            f"the user {JOB_USER} does not exist: the role `job_user` of the playbook creates it"
        ) from None
    return JobUser(entry.pw_name, entry.pw_uid, entry.pw_gid)


def create_job_folder(folder: Path, user: JobUser | None, mode: int = 0o755) -> None:
    """Create a folder that belongs to the job. Its parent belongs to root, so that the job cannot replace the folder.

    Raises PermissionError if `folder` exists and is a link.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        os.fchmod(descriptor, mode)
        if user is not None:
            os.fchown(descriptor, user.uid, user.gid)
    finally:
        os.close(descriptor)


def create_job_file(file: Path, content: bytes, user: JobUser | None) -> None:
    """Create or replace a file in a folder of the job, readable by the job only. It is complete when it exists."""
    temporary = file.with_name(f"{file.name}.new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        if user is not None:
            os.fchown(descriptor, user.uid, user.gid)
        stream.write(content)
    temporary.replace(file)


def list_job_folder(folder: Path, limit: int) -> list[str]:
    """Return names of entries of a folder of the job, in any order, `limit` at most: the job may create any number.

    Returns none if the folder does not exist, or is a file or a link.
    """
    with suppress(FileNotFoundError, NotADirectoryError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            with os.scandir(descriptor) as entries:
                return [entry.name for entry in islice(entries, limit)]
        finally:
            os.close(descriptor)
    return []


def delete_job_folder(folder: Path) -> None:
    """Delete a folder of the job, which may be deeper than the recursion limit of shutil.rmtree. Errors are ignored.

    Links are not followed.
    """
    subprocess.run(["rm", "--recursive", "--force", "--", str(folder)], capture_output=True, check=False)


def open_job_file(file: Path) -> BinaryIO:
    """Open a file that the job has written. Raises OSError unless it is a regular file at exactly this path.

    `file` has no links in the part that belongs to root. Links that the job has created, also in the names of folders,
    lead to another path. Another name of a file (hard link) is refused, too.
    """
    for _ in range(_ATTEMPTS):
        # Without O_NONBLOCK the open of a named pipe waits for a writer.
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            status, path = os.fstat(descriptor), str(Path(f"/proc/self/fd/{descriptor}").readlink())
            if stat.S_ISREG(status.st_mode) and path == str(file) and status.st_nlink == 1:
                return os.fdopen(os.dup(descriptor), "rb")
        finally:
            os.close(descriptor)
        if path != f"{file}{_DELETED}":
            break
    raise PermissionError(f"{file} is no regular file of the job")


def read_job_file(file: Path, limit: int = _MAXIMUM_BYTES) -> bytes:
    """Return the end of a file that the job has written, `limit` bytes at most. Raises OSError as `open_job_file`."""
    with open_job_file(file) as stream:
        stream.seek(max(0, os.fstat(stream.fileno()).st_size - limit))
        return stream.read(limit)
