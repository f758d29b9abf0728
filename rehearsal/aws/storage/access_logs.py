"""Server access logs of S3: their configuration. They are not delivered.

The destination is a bucket of the same account and region without Object Lock, whose policy allows the service
logging.s3.amazonaws.com to write below the prefix. Source:
https://docs.aws.amazon.com/AmazonS3/latest/userguide/enable-server-access-logging.html
moto 5.2.5 reads no policy with other principals than services, and delivers logs without the result of the request.
"""

from typing import Any

from moto.s3.exceptions import CrossLocationLoggingProhibited, InvalidTargetBucketForLogging
from moto.s3.models import FakeBucket, S3Backend

from rehearsal.aws.iam.policies import AccessRequest, Principal, evaluate_policies
from rehearsal.aws.moto_extension import extend

_SERVICE = Principal(frozenset(["logging.s3.amazonaws.com"]), kind="Service")


def install() -> None:
    """Replace moto's configuration of access logs, and disable its delivery."""
    extend(FakeBucket, set_logging)
    extend(S3Backend, log_incoming_request=lambda self, request, bucket_name: None)


def set_logging(self: Any, logging_config: dict[str, Any] | None, bucket_backend: Any) -> None:
    """Enable access logs, or disable them with an empty configuration."""
    if logging_config:
        _validate(self, logging_config, bucket_backend.buckets.get(logging_config["TargetBucket"]))
    self.logging = logging_config or {}


def _validate(source: Any, configuration: dict[str, Any], target: Any) -> None:
    if target is None:
        raise InvalidTargetBucketForLogging("The target bucket for logging does not exist")
    if target.region_name != source.region_name:
        raise CrossLocationLoggingProhibited()
    if target.object_lock_enabled:
        raise InvalidTargetBucketForLogging("A bucket with Object Lock can't be the target bucket for logging")
    context = {
        "aws:sourcearn": source.arn,
        "aws:sourceaccount": source.account_id,
        "aws:sourceowner": source.account_id,
        "aws:principalarn": None,
    }
    key = f"{target.arn}/{configuration.get('TargetPrefix') or ''}x"
    request = AccessRequest("s3:PutObject", key, context)
    if evaluate_policies([target.policy] if target.policy else [], request, _SERVICE) != "Allow":
        raise InvalidTargetBucketForLogging(
            "The policy of the target bucket must allow logging.s3.amazonaws.com to write to the prefix"
        )
