"""The configuration of server access logs."""

import json
from typing import Any

import pytest

from rehearsal.aws.process import ACCOUNT
from tests.rehearsal.aws.conftest import Client
from tests.rehearsal.aws.iam.test_authorization import ALLOWED, outcome

REFUSED = ("InvalidTargetBucketForLogging", 400)


@pytest.fixture
def source(client: Client, name: str) -> str:
    client("s3").create_bucket(Bucket=f"source-{name}")
    return f"source-{name}"


@pytest.fixture
def target(client: Client, name: str) -> str:
    client("s3").create_bucket(Bucket=f"logs-{name}")
    return f"logs-{name}"


def allow_delivery(client: Client, target: str, prefix: str = "access-logs/", account: str = ACCOUNT) -> None:
    """Set a policy with the statement of AWS's documentation, and one that requires TLS."""
    arn = f"arn:aws:s3:::{target}"
    delivery = {
        "Effect": "Allow",
        "Principal": {"Service": "logging.s3.amazonaws.com"},
        "Action": ["s3:PutObject"],
        "Resource": f"{arn}/{prefix}*",
        "Condition": {
            "ArnLike": {"aws:SourceArn": "arn:aws:s3:::source-*"},
            "StringEquals": {"aws:SourceAccount": account},
        },
    }
    tls = {"Bool": {"aws:SecureTransport": "false"}}
    deny = {"Effect": "Deny", "Principal": "*", "Action": "s3:*", "Resource": [f"{arn}/*"], "Condition": tls}
    document = {"Version": "2012-10-17", "Statement": [deny, delivery]}
    client("s3").put_bucket_policy(Bucket=target, Policy=json.dumps(document))


def enable(client: Client, source: str, target: str) -> tuple[str | None, int]:
    status: Any = {"LoggingEnabled": {"TargetBucket": target, "TargetPrefix": "access-logs/local/"}}
    return outcome(lambda: client("s3").put_bucket_logging(Bucket=source, BucketLoggingStatus=status))


def test_bucket_has_access_logs(client: Client, source: str, target: str) -> None:
    allow_delivery(client, target)
    assert enable(client, source, target) == ALLOWED
    described = client("s3").get_bucket_logging(Bucket=source)["LoggingEnabled"]
    assert described == {"TargetBucket": target, "TargetPrefix": "access-logs/local/"}
    client("s3").put_bucket_logging(Bucket=source, BucketLoggingStatus={})
    assert "LoggingEnabled" not in client("s3").get_bucket_logging(Bucket=source)


def test_logs_are_not_delivered(client: Client, source: str, target: str) -> None:
    allow_delivery(client, target)
    enable(client, source, target)
    client("s3").put_object(Bucket=source, Key="x", Body=b"")
    assert client("s3").list_objects_v2(Bucket=target)["KeyCount"] == 0


@pytest.mark.parametrize("more", [{"prefix": "other/"}, {"account": "999988887777"}, None])
def test_policy_must_allow_the_delivery(client: Client, source: str, target: str, more: dict[str, str] | None) -> None:
    if more is not None:
        allow_delivery(client, target, **more)
    assert enable(client, source, target) == REFUSED


def test_target_must_exist(client: Client, source: str) -> None:
    assert enable(client, source, f"{source}-missing") == REFUSED


def test_target_cannot_have_object_lock(client: Client, source: str, name: str) -> None:
    client("s3").create_bucket(Bucket=f"locked-{name}", ObjectLockEnabledForBucket=True)
    allow_delivery(client, f"locked-{name}")
    assert enable(client, source, f"locked-{name}") == REFUSED
