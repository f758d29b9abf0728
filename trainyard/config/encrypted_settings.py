"""Refuses Pulumi secrets in the settings of the cluster, which the manifest and the state hold as plain text."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainyard.config import CONFIG_KEY
from trainyard.config.stack_config import read_config
from trainyard.errors import Problem

_REASON = "a Pulumi secret, but the manifest object and the Pulumi state hold the settings as plain text"
_FIX = (
    "Replace it by a plain value. For a secret of the job, store it in an SSM parameter of type SecureString, and name "
    "that in job.secrets"
)


def encrypted_settings(raw: Mapping[Any, Any]) -> list[Problem]:
    """Return a problem for each encrypted value of `trainyard:cluster` in a stack file.

    Source of the syntax: Pulumi documentation, "Configuration", an object with the only key `secure`.
    """
    return [_problem(key) for key in _encrypted_keys(raw, CONFIG_KEY)]


def decrypted_settings(file: Path, source: str) -> list[Problem]:
    """Return the problems of settings that Pulumi has decrypted. `file`: the stack file, named `source` in messages.

    Raises InputError for an unreadable stack file.
    """
    raw = read_config(file, source).get(CONFIG_KEY) if file.is_file() else None
    # A secret of an ESC environment is not in the file.
    return (encrypted_settings(raw) if isinstance(raw, Mapping) else []) or [_problem(CONFIG_KEY)]


def _problem(key: str) -> Problem:
    return Problem(key, None, _REASON, _FIX, "encrypted_setting")


def _encrypted_keys(value: Any, key: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        if value.keys() == {"secure"}:
            yield key
            return
        for name, item in value.items():
            yield from _encrypted_keys(item, f"{key}.{name}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _encrypted_keys(item, f"{key}.{index}")
