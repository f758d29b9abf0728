"""Decodes and encodes property values of Pulumi's resource provider protocol.

In the protocol, a secret is an object around its value, an asset is an object with a path or a text, an unknown value
of a preview is one fixed string, and whole numbers are floats.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import json_format, struct_pb2  # type: ignore[import-untyped]
from pulumi.runtime import rpc

from rehearsal.adapter.errors import AdapterError

UNKNOWN = rpc.UNKNOWN
_SIGNATURE = rpc._special_sig_key
_UNSUPPORTED = {
    rpc._special_archive_sig: "an archive",
    rpc._special_resource_sig: "a resource reference",
    rpc._special_output_value_sig: "an output value",
}


@dataclass(frozen=True, kw_only=True)
class Asset:
    """A file or a text. Assets are equal when their content is: a checkout at another path changes nothing."""

    hash: str
    path: str = field(default="", compare=False)
    text: str | None = field(default=None, compare=False)


def decode(properties: Any) -> dict[str, Any]:
    """Return a protobuf Struct as plain values. Raises AdapterError for a kind of value that is not supported."""
    message = json_format.MessageToDict(properties)
    return {key: _decode(value, key) for key, value in message.items() if value is not None}


def _decode(value: Any, path: str) -> Any:
    if isinstance(value, dict):
        match value.get(_SIGNATURE):
            case None:
                return {key: _decode(item, f"{path}.{key}") for key, item in value.items() if item is not None}
            case rpc._special_secret_sig:
                return _decode(value["value"], path)
            case rpc._special_asset_sig:
                return Asset(hash=value.get("hash", ""), path=value.get("path", ""), text=value.get("text"))
            case signature:
                kind = _UNSUPPORTED.get(signature, signature)
                raise AdapterError(f"{path} is {kind}, which the adapter does not support")
    if isinstance(value, list):
        return [_decode(item, path) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def encode(values: Mapping[str, Any]) -> Any:
    """Return plain values as a protobuf Struct."""
    struct = struct_pb2.Struct()
    struct.update({key: _encode(value) for key, value in values.items()})
    return struct


def _encode(value: Any) -> Any:
    if isinstance(value, Asset):
        content = {"path": value.path} if value.text is None else {"text": value.text}
        return {_SIGNATURE: rpc._special_asset_sig, "hash": value.hash, **content}
    if isinstance(value, Mapping):
        return {key: _encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encode(item) for item in value]
    return value
