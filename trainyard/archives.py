"""Extraction of Trainyard's archives: bundles and job sources, which contain regular files only."""

import tarfile
from pathlib import Path, PurePosixPath
from typing import IO


def extract_archive(archive: IO[bytes], folder: Path) -> None:
    """Extract an archive into an existing folder.

    Raises ValueError before it writes a file if the archive contains a link or another special file, or a name that
    leads out of the folder. tarfile's filters exist since Python 3.11.4, and Debian 12 has 3.11.2.
    """
    with tarfile.open(fileobj=archive) as tar:
        members = tar.getmembers()
        for member in members:
            path = PurePosixPath(member.name)
            if not member.isfile() or path.is_absolute() or ".." in path.parts:
                raise ValueError(f"the archive contains {member.name!r}, which is no regular file below its folder")
            member.mode &= 0o755
        tar.extractall(folder, members)  # noqa: S202 (checked above)
