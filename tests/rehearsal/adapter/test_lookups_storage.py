"""Buckets and keys that are there, looked up."""

import boto3
import pytest

from rehearsal.adapter.account import Adapter
from rehearsal.adapter.errors import Refused
from rehearsal.adapter.static import StaticAccount
from rehearsal.aws.process import ACCOUNT, EmulatedAws

BUCKET, KEY = "aws:s3/getBucket:getBucket", "aws:kms/getKey:getKey"


def test_a_bucket_of_another_region_is_told_with_its_own(aws: EmulatedAws, account: Adapter) -> None:
    where = {"LocationConstraint": "eu-west-1"}
    boto3.client("s3", region_name="eu-west-1").create_bucket(Bucket="looked-up", CreateBucketConfiguration=where)
    told = account.look_up(BUCKET, {"bucket": "looked-up"})
    assert (told["arn"], told["bucketRegion"], told["region"]) == ("arn:aws:s3:::looked-up", "eu-west-1", aws.region)


def test_a_bucket_that_is_not_there_is_refused(account: Adapter) -> None:
    with pytest.raises(Refused, match=r"getBucket.*HeadBucket: 404"):
        account.look_up(BUCKET, {"bucket": "nobody-made-this"})


def test_a_key_is_found_by_id_arn_and_alias(account: Adapter) -> None:
    kms = boto3.client("kms")
    made = kms.create_key()["KeyMetadata"]
    kms.create_alias(AliasName="alias/looked-up", TargetKeyId=made["KeyId"])
    for name in (made["KeyId"], made["Arn"], "alias/looked-up"):
        told = account.look_up(KEY, {"keyId": name})
        assert (told["arn"], told["keyState"], told["enabled"]) == (made["Arn"], "Enabled", True)
        assert (told["keySpec"], told["keyUsage"]) == ("SYMMETRIC_DEFAULT", "ENCRYPT_DECRYPT")


def test_a_key_to_be_deleted_is_told_so(account: Adapter) -> None:
    kms = boto3.client("kms")
    made = kms.create_key()["KeyMetadata"]["KeyId"]
    kms.schedule_key_deletion(KeyId=made, PendingWindowInDays=7)
    told = account.look_up(KEY, {"keyId": made})
    assert (told["keyState"], told["enabled"]) == ("PendingDeletion", False)
    assert told["deletionDate"]


def test_the_static_account_answers_with_the_same_keys(account: Adapter) -> None:
    static, kms, s3 = StaticAccount(), boto3.client("kms"), boto3.client("s3")
    s3.create_bucket(Bucket="looked-up-too")
    for token, given in (
        (KEY, {"keyId": kms.create_key()["KeyMetadata"]["KeyId"]}),
        (BUCKET, {"bucket": "looked-up-too"}),
    ):
        assert static.look_up(token, given).keys() <= account.look_up(token, given).keys()


@pytest.mark.parametrize(
    ("role", "arn"),
    [("data-bucket", "arn:aws:s3:::data"), ("stack-key", f"arn:aws:kms:us-east-1:{ACCOUNT}:key/k")],
)
def test_the_static_account_finds_what_is_retained_by_its_role(role: str, arn: str) -> None:
    token = "aws:resourcegroupstaggingapi/getResources:getResources"
    given = {"tagFilters": [{"key": "trainyard:role", "values": [role]}]}
    found = StaticAccount(retained="data", retained_key="k").look_up(token, given)["resourceTagMappingLists"]
    assert [each["resourceArn"] for each in found] == [arn]
    assert StaticAccount().look_up(token, given)["resourceTagMappingLists"] == []
