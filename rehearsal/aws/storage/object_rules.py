"""The lifecycle rules of buckets as S3 takes and tells them. Who carries them out: object_lifecycle.

moto forgets how many noncurrent versions a rule keeps and the least size of a transition, and passes over what it does
not know. Source: https://docs.aws.amazon.com/AmazonS3/latest/API/API_PutBucketLifecycleConfiguration.html
"""

from collections.abc import Iterable, Mapping
from typing import Any

from moto.s3.exceptions import S3ClientError
from moto.s3.models import FakeBucket
from moto.s3.responses import S3Response

from rehearsal.aws.extension import extend

ALL_128K = "all_storage_classes_128K"
_HEADER = "x-amz-transition-default-minimum-object-size"
_KNOWN: dict[str, frozenset[str]] = {
    "Filter": frozenset(["Prefix", "Tag", "And"]),
    "And": frozenset(["Prefix", "Tag"]),
    "Expiration": frozenset(["Days", "ExpiredObjectDeleteMarker"]),
    "Transition": frozenset(["Days", "StorageClass"]),
}


def install() -> None:
    put, tell, answer = FakeBucket.set_lifecycle, S3Response.get_bucket_lifecycle, S3Response._bucket_response_put

    def set_lifecycle(self: Any, rules: list[dict[str, Any]]) -> None:
        for rule in rules:
            _check(rule)
        put(self, rules)
        for made, rule in zip(self.rules, rules, strict=True):
            made.newer_kept = (rule.get("NoncurrentVersionExpiration") or {}).get("NewerNoncurrentVersions")

    def _bucket_response_put(self: Any, request: Any, bucket_name: str, querystring: dict[str, Any]) -> Any:
        answered = answer(self, request, bucket_name, querystring)
        if "lifecycle" in querystring:
            self.backend.get_bucket(bucket_name).least_moved = request.headers.get(_HEADER, ALL_128K)
        return answered

    def get_bucket_lifecycle(self: Any) -> Any:
        bucket, plain = self.backend.get_bucket(self.bucket_name), self.serialized

        def serialized(told: Any) -> Any:
            told.result["TransitionDefaultMinimumObjectSize"] = bucket.least_moved
            for rule, shown in zip(bucket.rules, told.result["Rules"], strict=True):
                if rule.newer_kept is not None:
                    shown["NoncurrentVersionExpiration"]["NewerNoncurrentVersions"] = rule.newer_kept
            return plain(told)

        self.serialized = serialized
        try:
            return tell(self)
        finally:
            del self.serialized

    extend(FakeBucket, set_lifecycle, least_moved=ALL_128K)
    extend(S3Response, _bucket_response_put, get_bucket_lifecycle)


def _check(rule: Mapping[str, Any]) -> None:
    filters = rule.get("Filter") or {}
    for name, part in [
        ("Filter", filters),
        ("And", filters.get("And") or {}),
        ("Expiration", rule.get("Expiration") or {}),
        *(("Transition", each) for each in _listed(rule.get("Transition"))),
    ]:
        if unknown := part.keys() - _KNOWN[name]:
            raise NotImplementedError(f"a lifecycle rule with {', '.join(sorted(unknown))} in {name}")
    tagged = "Tag" in filters or "Tag" in (filters.get("And") or {})
    if tagged and "AbortIncompleteMultipartUpload" in rule:  # parts have no tags
        raise S3ClientError("InvalidRequest", "AbortIncompleteMultipartUpload cannot be specified with Tags.")


def _listed(given: Any) -> Iterable[Mapping[str, Any]]:
    return given if isinstance(given, list) else [] if given is None else [given]
