"""The lifecycle rules of a bucket: their input keys, and how S3's API has them."""

from collections.abc import Mapping
from typing import Any

from rehearsal.adapter.handler import Keys, api_case, known, tag_list

RULE: Keys = known(
    "id",
    "status",
    filter=known("prefix", tag=known("key", "value"), **{"and": known("prefix", "tags")}),
    expiration=known("days"),
    transitions=known("days", "storageClass"),
    abortIncompleteMultipartUpload=known("daysAfterInitiation"),
    noncurrentVersionExpiration=known("noncurrentDays", "newerNoncurrentVersions"),
    noncurrentVersionTransitions=known("noncurrentDays", "newerNoncurrentVersions", "storageClass"),
)
_PARTS = ("expiration", "abortIncompleteMultipartUpload", "noncurrentVersionExpiration")
_LISTS = ("transitions", "noncurrentVersionTransitions")


def api_rule(rule: Mapping[str, Any]) -> dict[str, Any]:
    """One rule of the inputs under the API's names."""
    return (
        {"ID": rule["id"], "Status": rule["status"]}
        | ({"Filter": _filter(rule["filter"])} if "filter" in rule else {})
        | {api_case(part): _api(rule[part]) for part in _PARTS if part in rule}
        | {api_case(part): [_api(item) for item in rule[part]] for part in _LISTS if part in rule}
    )


def _filter(given: Mapping[str, Any]) -> dict[str, Any]:
    if "and" in given:
        both = given["and"]
        return {"And": ({"Prefix": both["prefix"]} if "prefix" in both else {}) | {"Tags": tag_list(both.get("tags"))}}
    if "tag" in given:
        return {"Tag": _api(given["tag"])}
    return {"Prefix": given.get("prefix", "")}


def _api(part: Mapping[str, Any]) -> dict[str, Any]:
    return {api_case(key): value for key, value in part.items()}
