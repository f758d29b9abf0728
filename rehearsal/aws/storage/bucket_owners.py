"""The expected owner of a bucket: S3 denies a request whose headers name another account than that of the bucket.

Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucket-owner-condition.html
"""

from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from moto.s3.exceptions import S3AccessDeniedError
from moto.s3.responses import S3Response

from rehearsal.aws.lookup import find_bucket
from rehearsal.aws.moto_extension import extend


def install() -> None:
    """Compare the headers of each request with the owners of its buckets."""
    bucket_response, key_response = S3Response._bucket_response, S3Response._key_response
    extend(S3Response, _bucket_response=_checked(bucket_response), _key_response=_checked(key_response))


def _checked(respond: Callable[..., Any]) -> Callable[..., Any]:
    def checked(self: Any, request: Any, full_url: str) -> Any:
        _check(request.headers, "x-amz-expected-bucket-owner", self.parse_bucket_name_from_url(request, full_url))
        source = unquote(request.headers.get("x-amz-copy-source", "")).lstrip("/").partition("/")[0]
        _check(request.headers, "x-amz-source-expected-bucket-owner", source)
        return respond(self, request, full_url)

    return checked


def _check(headers: Any, header: str, name: str | None) -> None:
    expected, bucket = headers.get(header), find_bucket(name) if name else None
    if expected and bucket is not None and bucket.account_id != expected:
        raise S3AccessDeniedError
