"""The part of cloud-init that Trainyard's user-data uses: `write_files` and `runcmd` of a #cloud-config document.

A key that a real cloud-init would heed and this one would not is an error, never ignored.
"""

from dataclasses import dataclass
from typing import Any

import yaml

_FILE_KEYS = {"path", "content", "permissions", "owner"}


@dataclass(frozen=True, kw_only=True)
class File:
    """One entry of `write_files`."""

    path: str
    content: str
    mode: int


@dataclass(frozen=True, kw_only=True)
class CloudConfig:
    """What user-data asks for."""

    files: tuple[File, ...]
    commands: tuple[tuple[str, ...], ...]


def parse(user_data: str) -> CloudConfig:
    """Read user-data. Raises ValueError for what is not a #cloud-config or asks for more than is known here."""
    if not user_data.startswith("#cloud-config"):
        raise ValueError(f"user-data is not a #cloud-config: {user_data[:40]!r}")
    document: dict[str, Any] = yaml.safe_load(user_data) or {}
    if unknown := document.keys() - {"write_files", "runcmd"}:
        raise ValueError(f"user-data has keys that are not rehearsed: {sorted(unknown)}")
    files = []
    for entry in document.get("write_files", []):
        if unknown := entry.keys() - _FILE_KEYS:
            raise ValueError(f"write_files of {entry.get('path')} has keys that are not rehearsed: {sorted(unknown)}")
        mode = int(str(entry.get("permissions", "0644")), 8)
        files.append(File(path=entry["path"], content=entry.get("content", ""), mode=mode))
    commands = tuple(
        ("/bin/sh", "-c", command) if isinstance(command, str) else tuple(str(word) for word in command)
        for command in document.get("runcmd", [])
    )
    return CloudConfig(files=tuple(files), commands=commands)
