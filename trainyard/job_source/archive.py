"""The archive of a custom job's source."""

import io
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from trainyard.archives import extract_archive


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
    with TemporaryDirectory() as folder:
        extract_archive(io.BytesIO(archive), Path(folder))
        yield Path(folder).resolve()
