"""Parses `write_files` and `runcmd` of a #cloud-config document, which Trainyard's user data uses.

Any other key is an error, because cloud-init would use it.
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
    """The files and commands of the user data."""

    files: tuple[File, ...]
    commands: tuple[tuple[str, ...], ...]


def parse(user_data: str) -> CloudConfig:
    """Parse user data. Raises ValueError for another format than #cloud-config and for unsupported keys."""
    if not user_data.startswith("#cloud-config"):
        raise ValueError(f"user data is not a #cloud-config: {user_data[:40]!r}")
    document: dict[str, Any] = yaml.safe_load(user_data) or {}
    if unknown := document.keys() - {"write_files", "runcmd"}:
        raise ValueError(f"user data has unsupported keys: {sorted(unknown)}")
    files = []
    for entry in document.get("write_files", []):
        if unknown := entry.keys() - _FILE_KEYS:
            raise ValueError(f"write_files of {entry.get('path')} has unsupported keys: {sorted(unknown)}")
        mode = int(str(entry.get("permissions", "0644")), 8)
        files.append(File(path=entry["path"], content=entry.get("content", ""), mode=mode))
    commands = tuple(
        ("/bin/sh", "-c", command) if isinstance(command, str) else tuple(str(argument) for argument in command)
        for command in document.get("runcmd", [])
    )
    return CloudConfig(files=tuple(files), commands=commands)
