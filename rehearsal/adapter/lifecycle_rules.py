"""S3 lifecycle rules: their input keys, and their conversion to the S3 API."""

from collections.abc import Mapping
from typing import Any

from rehearsal.adapter.handler import InputKeys, api_name, input_keys

RULE_KEYS: InputKeys = input_keys(
    "id",
    "status",
    filter=input_keys("prefix", tag=input_keys("key", "value")),
    expiration=input_keys("days"),
    transitions=input_keys("days", "storageClass"),
    abortIncompleteMultipartUpload=input_keys("daysAfterInitiation"),
    noncurrentVersionExpiration=input_keys("noncurrentDays"),
)
_OBJECTS = ("expiration", "abortIncompleteMultipartUpload", "noncurrentVersionExpiration")


def to_api_rule(rule: Mapping[str, Any]) -> dict[str, Any]:
    """Return a rule of the inputs under the API's names."""
    return (
        {"ID": rule["id"], "Status": rule["status"]}
        | ({"Filter": _filter(rule["filter"])} if "filter" in rule else {})
        | {api_name(part): _api(rule[part]) for part in _OBJECTS if part in rule}
        | ({"Transitions": [_api(item) for item in rule["transitions"]]} if "transitions" in rule else {})
    )


def _filter(values: Mapping[str, Any]) -> dict[str, Any]:
    if "tag" in values:
        return {"Tag": _api(values["tag"])}
    return {"Prefix": values.get("prefix", "")}


def _api(part: Mapping[str, Any]) -> dict[str, Any]:
    return {api_name(key): value for key, value in part.items()}
