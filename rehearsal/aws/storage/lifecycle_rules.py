"""Lifecycle rules of buckets: storage and validation. object_lifecycle.py executes them.

moto does not store the number of noncurrent versions that a rule keeps and the minimum object size of a transition, and
ignores elements that it does not know.
Source: https://docs.aws.amazon.com/AmazonS3/latest/API/API_PutBucketLifecycleConfiguration.html
"""

from collections.abc import Iterable, Mapping
from typing import Any

from moto.s3.exceptions import S3ClientError
from moto.s3.models import FakeBucket
from moto.s3.responses import S3Response

from rehearsal.aws.moto_extension import extend

ALL_128K = "all_storage_classes_128K"
_HEADER = "x-amz-transition-default-minimum-object-size"
_SUPPORTED_KEYS: dict[str, frozenset[str]] = {
    "Filter": frozenset(["Prefix", "Tag", "And"]),
    "And": frozenset(["Prefix", "Tag"]),
    "Expiration": frozenset(["Days", "ExpiredObjectDeleteMarker"]),
    "Transition": frozenset(["Days", "StorageClass"]),
}


def install() -> None:
    """Extend moto's lifecycle configuration."""
    moto_set, moto_get, moto_put_response = (
        FakeBucket.set_lifecycle,
        S3Response.get_bucket_lifecycle,
        S3Response._bucket_response_put,
    )

    def set_lifecycle(self: Any, rules: list[dict[str, Any]]) -> None:
        for rule in rules:
            _validate(rule)
        moto_set(self, rules)
        for stored, rule in zip(self.rules, rules, strict=True):
            stored.newer_noncurrent_versions = (rule.get("NoncurrentVersionExpiration") or {}).get(
                "NewerNoncurrentVersions"
            )

    def _bucket_response_put(self: Any, request: Any, bucket_name: str, querystring: dict[str, Any]) -> Any:
        response = moto_put_response(self, request, bucket_name, querystring)
        if "lifecycle" in querystring:
            self.backend.get_bucket(bucket_name).transition_minimum_size = request.headers.get(_HEADER, ALL_128K)
        return response

    def get_bucket_lifecycle(self: Any) -> Any:
        bucket, moto_serialized = self.backend.get_bucket(self.bucket_name), self.serialized

        def serialized(content: Any) -> Any:
            content.result["TransitionDefaultMinimumObjectSize"] = bucket.transition_minimum_size
            for rule, entry in zip(bucket.rules, content.result["Rules"], strict=True):
                if rule.newer_noncurrent_versions is not None:
                    entry["NoncurrentVersionExpiration"]["NewerNoncurrentVersions"] = rule.newer_noncurrent_versions
            return moto_serialized(content)

        self.serialized = serialized
        try:
            return moto_get(self)
        finally:
            del self.serialized

    extend(FakeBucket, set_lifecycle, transition_minimum_size=ALL_128K)
    extend(S3Response, _bucket_response_put, get_bucket_lifecycle)


def _validate(rule: Mapping[str, Any]) -> None:
    filters = rule.get("Filter") or {}
    for name, part in [
        ("Filter", filters),
        ("And", filters.get("And") or {}),
        ("Expiration", rule.get("Expiration") or {}),
        *(("Transition", entry) for entry in _as_list(rule.get("Transition"))),
    ]:
        if unsupported := part.keys() - _SUPPORTED_KEYS[name]:
            raise NotImplementedError(f"a lifecycle rule with {', '.join(sorted(unsupported))} in {name}")
    tagged = "Tag" in filters or "Tag" in (filters.get("And") or {})
    if tagged and "AbortIncompleteMultipartUpload" in rule:  # parts of an upload have no tags
        raise S3ClientError("InvalidRequest", "AbortIncompleteMultipartUpload cannot be specified with Tags.")


def _as_list(value: Any) -> Iterable[Mapping[str, Any]]:
    return value if isinstance(value, list) else [] if value is None else [value]
