"""The archive of a custom job's source."""

import io
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


def read_files(archive: bytes) -> dict[str, bytes]:
    """Return the files of the archive: path -> content."""
    files = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar.getmembers():
            if content := tar.extractfile(member):
                files[member.name] = content.read()
    return files


@contextmanager
def unpacked(archive: bytes) -> Iterator[Path]:
    """Yield a temporary folder with the files of the archive."""
    with TemporaryDirectory() as folder, tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder)  # noqa: S202 (the SHA-256 is that of the operator's archive)
        yield Path(folder).resolve()
