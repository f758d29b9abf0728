"""Authorization to use keys by key policies."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from rehearsal.aws.process import ACCOUNT, EmulatedAws
from tests.rehearsal.aws.conftest import Client
from tests.rehearsal.aws.iam.test_authorization import (
    ALLOWED,
    DENIED,
    UNKNOWN,
    Clients,
    Statement,
    allow,
    deny,
    outcome,
    session,
)
from tests.rehearsal.aws.iam.test_identity import TRUST

ROOT = {"AWS": f"arn:aws:iam::{ACCOUNT}:root"}
READ = ["kms:Decrypt", "kms:GenerateDataKey"]
Under = Callable[..., Clients]


def to(principal: Any, actions: Any = "kms:*", **more: Any) -> Statement:
    return allow(actions, "*", Principal=principal, **more)


def document(statements: tuple[Statement, ...]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)})


@pytest.fixture
def under(aws: EmulatedAws, client: Client, name: str) -> Under:
    """Return a function that creates a role, and a bucket of its name under a key with these statements.

    The role has all S3 permissions and `identity_statements`. SELF in the statements is the role's ARN.
    """

    def make(*statements: Statement, identity_statements: tuple[Statement, ...] = ()) -> Clients:
        arn = client("iam").create_role(RoleName=name, AssumeRolePolicyDocument=TRUST)["Role"]["Arn"]
        identity = document((allow("s3:*", "*"), *identity_statements))
        client("iam").put_role_policy(RoleName=name, PolicyName="inline", PolicyDocument=identity)
        policy = document(statements).replace("SELF", arn)
        key = client("kms").create_key(Policy=policy)["KeyMetadata"]["Arn"]
        client("s3").create_bucket(Bucket=f"under-{name}")
        rule = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": key}}
        encryption = {"Rules": [{**rule, "BucketKeyEnabled": True}]}
        client("s3").put_bucket_encryption(Bucket=f"under-{name}", ServerSideEncryptionConfiguration=encryption)
        return session(aws, client, name)

    return make


def put(clients: Clients, name: str) -> tuple[str | None, int]:
    return outcome(lambda: clients("s3").put_object(Bucket=f"under-{name}", Key="x", Body=b"x"))


def through(service: str) -> Statement:
    return {"Condition": {"StringEquals": {"kms:ViaService": f"{service}.us-east-1.amazonaws.com"}}}


@pytest.mark.parametrize(
    ("statements", "identity_statements", "expected"),
    [
        ([to(ROOT)], [], DENIED),
        ([to(ROOT)], [allow(READ, "*")], ALLOWED),
        ([to(ROOT, "kms:Describe*")], [allow(READ, "*")], DENIED),
        ([to({"AWS": "SELF"}, READ)], [], ALLOWED),
        ([to({"AWS": ["SELF", f"arn:aws:iam::{ACCOUNT}:root"]}, "kms:Decrypt")], [], DENIED),
        ([to({"AWS": ACCOUNT})], [allow(READ, "*")], ALLOWED),
        ([to({"AWS": "*"}, **through("s3"))], [], ALLOWED),
        ([to("*", **through("ec2"))], [], DENIED),
        ([to("*", Condition={"StringEquals": {"kms:CallerAccount": ACCOUNT}})], [], ALLOWED),
        ([to("*", Condition={"StringEquals": {"kms:CallerAccount": "999999999999"}})], [], DENIED),
        ([to("*", Condition={"ArnLike": {"aws:PrincipalArn": f"arn:aws:iam::{ACCOUNT}:role/thing-*"}})], [], ALLOWED),
        ([to("*", Condition={"ArnLike": {"aws:PrincipalArn": "arn:aws:iam::*"}})], [], DENIED),
        ([to("*", Condition={"StringLike": {"aws:PrincipalArn": "arn:aws:iam::*"}})], [], ALLOWED),
        ([to("*", Condition={"Bool": {"kms:GrantIsForAWSResource": "true"}})], [], DENIED),
        ([to("*", Condition={"BoolIfExists": {"kms:GrantIsForAWSResource": "true"}})], [], ALLOWED),
        ([to("*", Condition={"Null": {"kms:GrantIsForAWSResource": "true"}})], [], ALLOWED),
        ([to({"Service": "s3.amazonaws.com"})], [allow(READ, "*")], DENIED),
        ([to(ROOT), deny("kms:GenerateDataKey", "*", Principal={"AWS": "SELF"})], [allow(READ, "*")], DENIED),
        ([to("*"), deny("kms:GenerateDataKey", "*", Principal=ROOT)], [], DENIED),
        ([to({"AWS": "SELF"})], [deny("kms:*", "*")], DENIED),
        ([to(ROOT)], [allow(READ, "arn:aws:kms:us-east-1:999999999999:key/*")], DENIED),
        ([to("*", Condition={"StringEquals": {"kms:EncryptionContext:a": "b"}})], [], UNKNOWN),
        ([to({"Federated": "x"})], [], UNKNOWN),
    ],
)
def test_key_policy_controls_use_of_the_key(
    under: Under,
    name: str,
    statements: list[Statement],
    identity_statements: list[Statement],
    expected: tuple[Any, int],
) -> None:
    assert put(under(*statements, identity_statements=tuple(identity_statements)), name) == expected


def test_changed_key_policy_applies_at_once(client: Client, under: Under, name: str) -> None:
    clients = under(to(ROOT))
    (key,) = [each["KeyArn"] for each in client("kms").list_keys()["Keys"][-1:]]
    assert put(clients, name) == DENIED
    client("kms").put_key_policy(KeyId=key, PolicyName="default", Policy=document((to("*"),)))
    assert put(clients, name) == ALLOWED


def test_permissions_boundary_limits_key_policy(client: Client, under: Under, name: str) -> None:
    clients = under(to({"AWS": "SELF"}))
    assert put(clients, name) == ALLOWED
    only_s3 = "arn:aws:iam::aws:policy/AmazonS3FullAccess"
    client("iam").put_role_permissions_boundary(RoleName=name, PermissionsBoundary=only_s3)
    assert put(clients, name) == DENIED


def test_direct_kms_call_is_authorized_by_the_key(client: Client, under: Under, name: str) -> None:
    kms = under(to({"AWS": "SELF"}, ["kms:DescribeKey"]))("kms")
    (key,) = [each["KeyId"] for each in client("kms").list_keys()["Keys"][-1:]]
    assert outcome(lambda: kms.describe_key(KeyId=key)) == ALLOWED
    assert outcome(lambda: kms.get_key_policy(KeyId=key, PolicyName="default")) == ("AccessDeniedException", 400)


@pytest.mark.parametrize(
    "principal",
    [
        f"arn:aws:iam::{ACCOUNT}:role/missing",
        [f"arn:aws:iam::{ACCOUNT}:root", f"arn:aws:iam::{ACCOUNT}:user/missing"],
        f"arn:aws:iam::{ACCOUNT}:role/aws-service-role/x.amazonaws.com/AWSServiceRoleForX",
        "missing",
    ],
)
@pytest.mark.parametrize("new", [True, False])
def test_key_policy_with_unknown_principal_is_refused(client: Client, principal: Any, new: bool) -> None:
    kms, policy = client("kms"), document((to({"AWS": principal}),))
    key = kms.create_key()["KeyMetadata"]["KeyId"]
    act, which = (kms.create_key, {}) if new else (kms.put_key_policy, {"KeyId": key, "PolicyName": "default"})
    with pytest.raises(ClientError, match=r"MalformedPolicyDocument.*invalid principals"):
        act(Policy=policy, **which)


def test_malformed_key_policy_is_refused(client: Client) -> None:
    with pytest.raises(ClientError, match="MalformedPolicyDocument"):
        client("kms").create_key(Policy="all may")


def test_default_key_usage_is_encrypt_decrypt(client: Client) -> None:
    key_metadata = client("kms").create_key()["KeyMetadata"]
    assert (key_metadata["KeyUsage"], key_metadata["KeySpec"]) == ("ENCRYPT_DECRYPT", "SYMMETRIC_DEFAULT")
