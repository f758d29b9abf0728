"""Look up the data and the model that the job reads: objects below a prefix of the data bucket or of another bucket."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pulumi_aws as aws
from pydantic import ValidationError

from infra.lookups.errors import is_missing, lookup_failure
from trainyard.config.settings import StackSettings
from trainyard.config.validation_errors import invalid_setting
from trainyard.errors import Problem
from trainyard.models import layout
from trainyard.models.dataset import DATASET, INDEX
from trainyard.models.job import required_object

LISTED = 1000  # objects of one request
_MEASURED = 100  # objects whose sizes are looked up, one request each


@dataclass(frozen=True, kw_only=True)
class SourceFacts:
    """Facts of one prefix that the job reads.

    `key`: the setting. `uri`: None if the data bucket does not exist. `region`: of the bucket. `objects`: number of
    objects, LISTED at most. `required`: name of an object that the built-in trainer needs, `has_required` whether it
    exists. `incomplete`: an upload of `trainyard data put` has not ended. `kms_key`: ARN of the customer managed key of
    the first object. `storage_class`: of the first object. `bytes`: of all objects, if known; looked up only for a
    bucket in another region.
    """

    key: str
    value: str
    uri: str | None
    region: str
    objects: int
    required: str | None = None
    has_required: bool = True
    incomplete: bool = False
    kms_key: str | None = None
    storage_class: str | None = None
    bytes: int | None = None


def look_up_sources(
    settings: StackSettings, data_bucket: str | None, region: str
) -> tuple[list[SourceFacts], list[Problem]]:
    """Look up all prefixes that the job reads. `data_bucket`: None if it does not exist. Failed lookups are problems.

    The dataset of the built-in corpus is omitted: the launch creates it.
    """
    facts, problems = [], []
    for key, name in settings.job.datasets.items():
        if key == "job.dataset" and settings.job.builtin_corpus:
            continue
        uri = f"s3://{data_bucket}/{layout.dataset_prefix(name)}" if data_bucket else None
        value = name if key == "job.dataset" else settings.job.model or ""
        if uri is None:
            facts.append(SourceFacts(key=key, value=value, uri=None, region=region, objects=0))
            continue
        try:
            facts.append(_look_up_prefix(settings, key, value, uri, region, region, layout.upload_key(name)))
        except Exception as error:
            problems.append(_lookup_problem(key, value, error))
    for key, uri in settings.job.s3_sources.items():
        try:
            bucket_region = aws.s3.get_bucket(bucket=layout.split_s3_uri(uri)[0]).bucket_region
            facts.append(_look_up_prefix(settings, key, uri, uri, bucket_region, region))
        except Exception as error:
            problems.append(_lookup_problem(key, uri, error))
    return facts, problems


def _lookup_problem(key: str, value: str, error: Exception) -> Problem:
    if is_missing(error):
        fix = "Correct the name, or create the bucket"
        return invalid_setting(key, value, f"the bucket does not exist: {lookup_failure(error)}", fix, "bucket_missing")
    # terraform-provider-aws #27867: its lookup of an object fails without s3:GetObjectTagging.
    actions = "s3:ListBucket, s3:GetObject and s3:GetObjectTagging"
    fix = f"Request {actions} for it, in the policy of the bucket too if another account owns it"
    return invalid_setting(key, value, lookup_failure(error), fix, "lookup_failed")


def _look_up_prefix(
    settings: StackSettings, key: str, value: str, uri: str, bucket_region: str, region: str, upload: str | None = None
) -> SourceFacts:
    bucket, prefix = layout.split_s3_uri(uri)
    keys = _list(bucket, prefix, bucket_region)
    required = required_object(settings.job, key)
    first = _head(bucket, keys[0], bucket_region) if keys else None
    return SourceFacts(
        key=key,
        value=value,
        uri=uri,
        region=bucket_region,
        objects=len(keys),
        required=required,
        has_required=required is None or bool(_list(bucket, prefix + required, bucket_region)),
        incomplete=upload is not None and bool(_list(bucket, upload, bucket_region)),
        kms_key=_customer_key(first.sse_kms_key_id, bucket_region) if first else None,
        storage_class=first.storage_class if first else None,
        bytes=_total_bytes(bucket, prefix, keys, bucket_region) if keys and bucket_region != region else None,
    )


def _list(bucket: str, prefix: str, region: str) -> list[str]:
    """Return keys below a prefix, LISTED at most, without the empty objects by which the console shows folders."""
    keys = aws.s3.get_objects(bucket=bucket, prefix=prefix, max_keys=LISTED, region=region).keys
    return [key for key in keys if not key.endswith("/")]


def _head(bucket: str, key: str, region: str) -> aws.s3.GetObjectResult:
    return aws.s3.get_object(bucket=bucket, key=key, region=region, download_body="false")


def _customer_key(arn: str | None, region: str) -> str | None:
    """Return the ARN of a customer managed key; None for others, which need no permission of the nodes.

    A key that cannot be looked up is of another account, whose AWS managed key would make the object unreadable.
    """
    if not arn:
        return None
    try:
        return None if aws.kms.get_key(key_id=arn, region=region).key_manager == "AWS" else arn
    except Exception:
        return arn


def _total_bytes(bucket: str, prefix: str, keys: Sequence[str], region: str) -> int | None:
    """Return the bytes of all objects: from the index of a dataset, or of each object if they are few; else None."""
    if prefix + INDEX in keys:
        content = aws.s3.get_object(bucket=bucket, key=prefix + INDEX, region=region).body
        try:
            index = DATASET.validate_json(content)
        except ValidationError:
            return None
        return sum(shard.bytes for shard in (*index.train, *index.validation))
    return sum(_sizes(bucket, keys, region)) if len(keys) <= _MEASURED else None


def _sizes(bucket: str, keys: Sequence[str], region: str) -> Iterator[int]:
    for key in keys:
        yield _head(bucket, key, region).content_length
