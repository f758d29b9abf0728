"""KMS keys and aliases, made, changed, adopted and deleted through their handlers."""

import json
from typing import Any

import boto3
import pytest

from rehearsal.adapter.account import Adapter
from rehearsal.adapter.errors import Refused
from rehearsal.aws.process import ACCOUNT, EmulatedAws
from tests.rehearsal.adapter.made import Made

KEY, ALIAS = "aws:kms/key:Key", "aws:kms/alias:Alias"


def policy(*sids: str) -> str:
    root = {"AWS": f"arn:aws:iam::{ACCOUNT}:root"}
    statements = [
        {"Sid": sid, "Effect": "Allow", "Principal": root, "Action": "kms:*", "Resource": "*"} for sid in sids
    ]
    return json.dumps({"Version": "2012-10-17", "Statement": statements})


def told(key: str) -> tuple[str, list[str], bool, dict[str, str]]:
    """Description, the policy's statements, rotation, tags."""
    kms = boto3.client("kms")
    document = json.loads(kms.get_key_policy(KeyId=key, PolicyName="default")["Policy"])
    return (
        kms.describe_key(KeyId=key)["KeyMetadata"]["Description"],
        [statement["Sid"] for statement in document["Statement"]],
        kms.get_key_rotation_status(KeyId=key)["KeyRotationEnabled"],
        {tag["TagKey"]: tag["TagValue"] for tag in kms.list_resource_tags(KeyId=key)["Tags"]},
    )


def make(account: Adapter, **changes: Any) -> Made:
    inputs = {"description": "data", "enableKeyRotation": True, "policy": policy("one"), "tags": {"a": "1", "b": "2"}}
    return Made(account, KEY, **{**inputs, "deletionWindowInDays": 7, **changes})


def test_a_key_is_made_as_asked(account: Adapter) -> None:
    key = make(account)
    assert key.outputs == {"keyId": key.id, "arn": f"arn:aws:kms:us-east-1:{ACCOUNT}:key/{key.id}"}
    assert told(key.id) == ("data", ["one"], True, {"a": "1", "b": "2"})


def test_a_key_is_changed_in_place(account: Adapter) -> None:
    key = make(account)
    key.update(description="other", enableKeyRotation=False, policy=policy("one", "two"), tags={"b": "3"})
    assert told(key.id) == ("other", ["one", "two"], False, {"b": "3"})


def test_a_deleted_key_is_pending_for_the_window(aws: EmulatedAws, account: Adapter) -> None:
    key = make(account)
    key.delete()
    found = boto3.client("kms").describe_key(KeyId=key.id)["KeyMetadata"]
    assert found["KeyState"] == "PendingDeletion"
    assert 6.9 < (found["DeletionDate"].timestamp() - aws.now()) / 86400 < 7.1
    key.delete()  # a deletion that was cut is repeated


def test_an_adopted_key_is_brought_in_line(account: Adapter) -> None:
    key = make(account)
    again = Made(account, KEY, adopt=key.id, description="data", policy=policy("two"), tags={"a": "1"})
    assert (again.id, again.outputs) == (key.id, key.outputs)
    assert told(key.id) == ("data", ["two"], False, {"a": "1"})


def test_a_key_that_is_as_wanted_is_adopted_without_a_change(aws: EmulatedAws, account: Adapter) -> None:
    key = make(account)
    calls = len(aws.journal())
    Made(account, KEY, adopt=key.id, **key.inputs)
    assert [call.operation for call in aws.journal()[calls:] if call.mutating] == []


def test_a_key_that_is_to_be_deleted_is_not_adopted(account: Adapter) -> None:
    key = make(account)
    key.delete()
    with pytest.raises(Refused, match="PendingDeletion: cancel its deletion"):
        Made(account, KEY, adopt=key.id)


def test_an_alias_names_one_key_and_then_another(account: Adapter) -> None:
    first, second = make(account), make(account)
    alias = Made(account, ALIAS, name="alias/mine", targetKeyId=first.id)
    assert alias.outputs["arn"] == f"arn:aws:kms:us-east-1:{ACCOUNT}:alias/mine"
    assert alias.outputs["targetKeyArn"] == first.outputs["arn"]
    assert alias.update(name="alias/mine", targetKeyId=second.id)["targetKeyArn"] == second.outputs["arn"]
    described = boto3.client("kms").describe_key(KeyId="alias/mine")["KeyMetadata"]
    assert described["KeyId"] == second.id
    adopted = Made(account, ALIAS, adopt="alias/mine", name="alias/mine", targetKeyId=first.outputs["arn"])
    assert adopted.outputs["targetKeyArn"] == first.outputs["arn"]
    alias.delete()
    assert "alias/mine" not in [each["AliasName"] for each in boto3.client("kms").list_aliases()["Aliases"]]
