"""Handler of KMS keys: creation, update, import and deletion."""

import json
from typing import Any

import boto3
import pytest

from rehearsal.adapter.account import EmulatedAccount
from rehearsal.adapter.errors import RequestFailedError
from rehearsal.aws.process import ACCOUNT, EmulatedAws
from tests.rehearsal.adapter.managed_resource import ManagedResource

KEY = "aws:kms/key:Key"


def policy(*sids: str) -> str:
    root = {"AWS": f"arn:aws:iam::{ACCOUNT}:root"}
    statements = [
        {"Sid": sid, "Effect": "Allow", "Principal": root, "Action": "kms:*", "Resource": "*"} for sid in sids
    ]
    return json.dumps({"Version": "2012-10-17", "Statement": statements})


def describe_key(key: str) -> tuple[str, list[str], bool, dict[str, str]]:
    """Return the description, the ids of the policy's statements, the rotation and the tags."""
    kms = boto3.client("kms")
    document = json.loads(kms.get_key_policy(KeyId=key, PolicyName="default")["Policy"])
    return (
        kms.describe_key(KeyId=key)["KeyMetadata"]["Description"],
        [statement["Sid"] for statement in document["Statement"]],
        kms.get_key_rotation_status(KeyId=key)["KeyRotationEnabled"],
        {tag["TagKey"]: tag["TagValue"] for tag in kms.list_resource_tags(KeyId=key)["Tags"]},
    )


def create_key(account: EmulatedAccount, **changes: Any) -> ManagedResource:
    inputs = {"description": "data", "enableKeyRotation": True, "policy": policy("one"), "tags": {"a": "1", "b": "2"}}
    return ManagedResource(account, KEY, **{**inputs, "deletionWindowInDays": 7, **changes})


def test_key_is_created_with_all_inputs(account: EmulatedAccount) -> None:
    key = create_key(account)
    assert key.outputs == {"keyId": key.id, "arn": f"arn:aws:kms:us-east-1:{ACCOUNT}:key/{key.id}"}
    assert describe_key(key.id) == ("data", ["one"], True, {"a": "1", "b": "2"})


def test_key_is_updated_in_place(account: EmulatedAccount) -> None:
    key = create_key(account)
    key.update(description="other", enableKeyRotation=False, policy=policy("one", "two"), tags={"b": "3"})
    assert describe_key(key.id) == ("other", ["one", "two"], False, {"b": "3"})


def test_deleted_key_is_pending_deletion_for_the_waiting_period(aws: EmulatedAws, account: EmulatedAccount) -> None:
    key = create_key(account)
    key.delete()
    result = boto3.client("kms").describe_key(KeyId=key.id)["KeyMetadata"]
    assert result["KeyState"] == "PendingDeletion"
    assert 6.9 < (result["DeletionDate"].timestamp() - aws.now()) / 86400 < 7.1
    key.delete()  # a deletion repeats after an interrupt


def test_imported_key_is_updated_where_it_differs(account: EmulatedAccount) -> None:
    key = create_key(account)
    imported = ManagedResource(
        account, KEY, import_id=key.id, description="data", policy=policy("two"), tags={"a": "1"}
    )
    assert (imported.id, imported.outputs) == (key.id, key.outputs)
    assert describe_key(key.id) == ("data", ["two"], False, {"a": "1"})


def test_import_of_an_equal_key_changes_nothing(aws: EmulatedAws, account: EmulatedAccount) -> None:
    key = create_key(account)
    calls = len(aws.journal())
    ManagedResource(account, KEY, import_id=key.id, **key.inputs)
    assert [call.operation for call in aws.journal()[calls:] if call.mutating] == []


def test_key_pending_deletion_cannot_be_imported(account: EmulatedAccount) -> None:
    key = create_key(account)
    key.delete()
    with pytest.raises(RequestFailedError, match="PendingDeletion: cancel its deletion"):
        ManagedResource(account, KEY, import_id=key.id)
