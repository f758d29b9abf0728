"""Lookups of existing buckets and KMS keys."""

import boto3
import pytest

from rehearsal.adapter.account import EmulatedAccount
from rehearsal.adapter.errors import RequestFailedError
from rehearsal.adapter.static_account import StaticAccount
from rehearsal.aws.process import ACCOUNT, EmulatedAws

BUCKET, KEY = "aws:s3/getBucket:getBucket", "aws:kms/getKey:getKey"


def test_bucket_lookup_returns_the_region_of_the_bucket(aws: EmulatedAws, account: EmulatedAccount) -> None:
    configuration = {"LocationConstraint": "eu-west-1"}
    boto3.client("s3", region_name="eu-west-1").create_bucket(
        Bucket="lookup-bucket", CreateBucketConfiguration=configuration
    )
    described = account.invoke(BUCKET, {"bucket": "lookup-bucket"})
    assert (described["arn"], described["bucketRegion"], described["region"]) == (
        "arn:aws:s3:::lookup-bucket",
        "eu-west-1",
        aws.region,
    )


def test_lookup_of_a_missing_bucket_fails(account: EmulatedAccount) -> None:
    with pytest.raises(RequestFailedError, match=r"getBucket.*HeadBucket: 404"):
        account.invoke(BUCKET, {"bucket": "missing-bucket"})


def test_key_lookup_accepts_id_arn_and_alias(account: EmulatedAccount) -> None:
    kms = boto3.client("kms")
    created = kms.create_key()["KeyMetadata"]
    kms.create_alias(AliasName="alias/lookup", TargetKeyId=created["KeyId"])
    for name in (created["KeyId"], created["Arn"], "alias/lookup"):
        described = account.invoke(KEY, {"keyId": name})
        assert (described["arn"], described["keyState"], described["enabled"]) == (created["Arn"], "Enabled", True)
        assert (described["keySpec"], described["keyUsage"]) == ("SYMMETRIC_DEFAULT", "ENCRYPT_DECRYPT")


def test_key_lookup_reports_a_pending_deletion(account: EmulatedAccount) -> None:
    kms = boto3.client("kms")
    created = kms.create_key()["KeyMetadata"]["KeyId"]
    kms.schedule_key_deletion(KeyId=created, PendingWindowInDays=7)
    described = account.invoke(KEY, {"keyId": created})
    assert (described["keyState"], described["enabled"]) == ("PendingDeletion", False)
    assert described["deletionDate"]


def test_static_account_returns_keys_of_the_emulated_account(account: EmulatedAccount) -> None:
    static, kms, s3 = StaticAccount(), boto3.client("kms"), boto3.client("s3")
    s3.create_bucket(Bucket="static-lookup-bucket")
    for token, arguments in (
        (KEY, {"keyId": kms.create_key()["KeyMetadata"]["KeyId"]}),
        (BUCKET, {"bucket": "static-lookup-bucket"}),
    ):
        assert static.invoke(token, arguments).keys() <= account.invoke(token, arguments).keys()


@pytest.mark.parametrize(
    ("role", "arn"),
    [("data-bucket", "arn:aws:s3:::data"), ("stack-key", f"arn:aws:kms:us-east-1:{ACCOUNT}:key/k")],
)
def test_static_account_finds_retained_resources_by_role_tag(role: str, arn: str) -> None:
    token = "aws:resourcegroupstaggingapi/getResources:getResources"
    arguments = {"tagFilters": [{"key": "trainyard:role", "values": [role]}]}
    result = StaticAccount(retained_bucket="data", retained_key_id="k").invoke(token, arguments)[
        "resourceTagMappingLists"
    ]
    assert [each["resourceArn"] for each in result] == [arn]
    assert StaticAccount().invoke(token, arguments)["resourceTagMappingLists"] == []
