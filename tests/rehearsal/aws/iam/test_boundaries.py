"""Permissions boundaries, and bucket policies with principals."""

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
    Clients,
    Statement,
    allow,
    deny,
    outcome,
    session,
)
from tests.rehearsal.aws.iam.test_identity import TRUST

Bounded = Callable[..., Clients]


def document(*statements: Statement) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)})


@pytest.fixture
def bounded(aws: EmulatedAws, client: Client, name: str) -> Bounded:
    """Return a function that creates a role with all S3 permissions, limited by a boundary with these statements."""

    def make(*statements: Statement) -> Clients:
        iam = client("iam")
        boundary = iam.create_policy(PolicyName=f"bound-{name}", PolicyDocument=document(*statements))["Policy"]["Arn"]
        iam.create_role(RoleName=name, AssumeRolePolicyDocument=TRUST, PermissionsBoundary=boundary)
        iam.put_role_policy(RoleName=name, PolicyName="inline", PolicyDocument=document(allow("s3:*", "*")))
        return session(aws, client, name)

    return make


@pytest.fixture
def bucket(client: Client, name: str) -> str:
    client("s3").create_bucket(Bucket=f"bound-{name}")
    client("s3").put_object(Bucket=f"bound-{name}", Key="x", Body=b"x")
    return f"bound-{name}"


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(ClientError) as caught:
        call()
    return str(caught.value.response["Error"]["Message"])


def test_permission_requires_policy_and_boundary(bounded: Bounded, bucket: str) -> None:
    s3 = bounded(allow(["s3:GetObject", "s3:ListBucket"], "*"), allow("ec2:*", "*"))("s3")
    assert outcome(lambda: s3.get_object(Bucket=bucket, Key="x")) == ALLOWED
    assert outcome(lambda: s3.put_object(Bucket=bucket, Key="y", Body=b"")) == DENIED
    message = refusal(lambda: s3.put_object(Bucket=bucket, Key="y", Body=b""))
    assert message.endswith("because no permissions boundary allows the s3:PutObject action")


def test_boundary_alone_allows_nothing(bounded: Bounded, bucket: str) -> None:
    role = bounded(allow("*", "*"))
    assert outcome(lambda: role("s3").get_object(Bucket=bucket, Key="x")) == ALLOWED
    assert outcome(role("ec2").describe_vpcs) == ("UnauthorizedOperation", 403)


def test_denial_by_the_boundary_overrides_permission(bounded: Bounded, bucket: str) -> None:
    s3 = bounded(allow("*", "*"), deny("s3:GetObject", "*"))("s3")
    message = refusal(lambda: s3.get_object(Bucket=bucket, Key="x"))
    assert message.endswith("with an explicit deny in a permissions boundary")


def test_boundary_is_added_and_removed_in_place(client: Client, bounded: Bounded, bucket: str, name: str) -> None:
    s3 = bounded(allow("ec2:*", "*"))("s3")
    assert outcome(lambda: s3.get_object(Bucket=bucket, Key="x")) == DENIED
    client("iam").delete_role_permissions_boundary(RoleName=name)
    assert outcome(lambda: s3.get_object(Bucket=bucket, Key="x")) == ALLOWED
    managed = "arn:aws:iam::aws:policy/AmazonS3ReadOnlyAccess"
    client("iam").put_role_permissions_boundary(RoleName=name, PermissionsBoundary=managed)
    assert outcome(lambda: s3.get_object(Bucket=bucket, Key="x")) == ALLOWED
    assert outcome(lambda: s3.put_object(Bucket=bucket, Key="x", Body=b"")) == DENIED


@pytest.mark.parametrize("put", ["create_role", "put_role_permissions_boundary"])
def test_unknown_boundary_is_refused(client: Client, name: str, put: str) -> None:
    iam, missing = client("iam"), f"arn:aws:iam::{ACCOUNT}:policy/missing"
    if put == "create_role":
        more = {"AssumeRolePolicyDocument": TRUST}
    else:
        more = {}
        iam.create_role(RoleName=name, AssumeRolePolicyDocument=TRUST)
    with pytest.raises(ClientError, match=f"NoSuchEntity.*Scope ARN: {missing} does not exist or is not attachable"):
        getattr(iam, put)(RoleName=name, PermissionsBoundary=missing, **more)


@pytest.mark.parametrize(
    ("principal", "expected"),
    [
        ({"AWS": f"arn:aws:iam::{ACCOUNT}:root"}, DENIED),
        ({"AWS": ["999999999999", ACCOUNT]}, DENIED),
        ({"AWS": "999999999999"}, ALLOWED),
        ({"AWS": "ROLE"}, DENIED),
        ({"AWS": f"arn:aws:iam::{ACCOUNT}:role/other"}, ALLOWED),
        ({"Service": "logs.amazonaws.com"}, ALLOWED),
    ],
)
def test_bucket_denial_applies_to_the_principals(
    client: Client, bounded: Bounded, bucket: str, name: str, principal: dict[str, Any], expected: tuple[Any, int]
) -> None:
    s3 = bounded(allow("*", "*"))("s3")
    statement_principal = json.loads(json.dumps(principal).replace("ROLE", f"arn:aws:iam::{ACCOUNT}:role/{name}"))
    statement = deny("s3:GetObject", f"arn:aws:s3:::{bucket}/*", Principal=statement_principal)
    client("s3").put_bucket_policy(Bucket=bucket, Policy=document(statement))
    assert outcome(lambda: s3.get_object(Bucket=bucket, Key="x")) == expected
