"""Property values between the engine's wire format and plain Python.

As in Pulumi's resource provider protocol: a secret is an object around its value, an asset one around a path or a
text, and what a preview can't know yet is one fixed string. Whole numbers come as floats.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import json_format, struct_pb2  # type: ignore[import-untyped]
from pulumi.runtime import rpc

from rehearsal.adapter.errors import AdapterError

UNKNOWN = rpc.UNKNOWN
_SIGNATURE = rpc._special_sig_key
_NOT_ASKED_FOR = {
    rpc._special_archive_sig: "an archive",
    rpc._special_resource_sig: "a resource reference",
    rpc._special_output_value_sig: "an output value",
}


@dataclass(frozen=True, kw_only=True)
class Asset:
    """A file or a text. Two are equal when their content is: a checkout that moved changes nothing."""

    hash: str
    path: str = field(default="", compare=False)
    text: str | None = field(default=None, compare=False)


def read(properties: Any) -> dict[str, Any]:
    """A Struct as plain values. Raises AdapterError for a kind of value that the adapter does not take."""
    return {key: _read(value, key) for key, value in json_format.MessageToDict(properties).items() if value is not None}


def _read(value: Any, where: str) -> Any:
    if isinstance(value, dict):
        match value.get(_SIGNATURE):
            case None:
                return {key: _read(item, f"{where}.{key}") for key, item in value.items() if item is not None}
            case rpc._special_secret_sig:
                return _read(value["value"], where)
            case rpc._special_asset_sig:
                return Asset(hash=value.get("hash", ""), path=value.get("path", ""), text=value.get("text"))
            case signature:
                raise AdapterError(f"{where} is {_NOT_ASKED_FOR.get(signature, signature)}: the adapter takes none")
    if isinstance(value, list):
        return [_read(item, where) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def write(values: Mapping[str, Any]) -> Any:
    """Plain values as a Struct."""
    struct = struct_pb2.Struct()
    struct.update({key: _written(value) for key, value in values.items()})
    return struct


def _written(value: Any) -> Any:
    if isinstance(value, Asset):
        content = {"path": value.path} if value.text is None else {"text": value.text}
        return {_SIGNATURE: rpc._special_asset_sig, "hash": value.hash, **content}
    if isinstance(value, Mapping):
        return {key: _written(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_written(item) for item in value]
    return value
