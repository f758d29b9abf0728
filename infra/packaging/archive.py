"""Reproducible archives: equal files give equal bytes, with any version of Python or zlib."""

import hashlib
import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Packed:
    """A tar archive and the SHA-256 of its bytes, which depends on the files' paths, modes and contents only."""

    data: bytes
    sha256: str

    def store(self, folder: Path) -> Path:
        """Write the archive to `folder` under its SHA-256 and return the path. Safe for concurrent writers."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.sha256}.tar"
        if not path.exists():
            partial = path.with_suffix(f".{id(self)}.partial")
            partial.write_bytes(self.data)
            partial.replace(path)
        return path


@dataclass(frozen=True)
class Entry:
    """One file of an archive."""

    data: bytes
    executable: bool = False


def pack(entries: Mapping[str, Entry]) -> Packed:
    """Pack files sorted by name, with mode 0644 or 0755, time 0 and owner root.

    The archive is not compressed: versions of zlib compress equal content to different bytes.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(entries):
            info = tarfile.TarInfo(name)
            info.size = len(entries[name].data)
            info.mode = 0o755 if entries[name].executable else 0o644
            archive.addfile(info, io.BytesIO(entries[name].data))
    data = buffer.getvalue()
    return Packed(data=data, sha256=hashlib.sha256(data).hexdigest())
