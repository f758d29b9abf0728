"""Roles that a role session assumes: trust policies, session policies and their limits."""

import json
from typing import Any

import pytest

from rehearsal.aws.process import EmulatedAws
from tests.rehearsal.aws.conftest import Client
from tests.rehearsal.aws.iam.test_authorization import (
    ALLOWED,
    DENIED,
    Clients,
    Role,
    Statement,
    allow,
    bucket,
    deny,
    outcome,
    role,
    session,
)

__all__ = ["bucket", "role"]
ACCOUNT_ROOT = "arn:aws:iam::123456789012:root"


def document(*statements: Statement) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)})


@pytest.fixture
def job_role(client: Client, name: str) -> str:
    """ARN of a second role that may read every object, and trusts the role of the test."""
    iam = client("iam")
    iam.create_role(RoleName=f"{name}-job", AssumeRolePolicyDocument=trust(f"arn:aws:iam::123456789012:role/{name}"))
    iam.put_role_policy(RoleName=f"{name}-job", PolicyName="x", PolicyDocument=document(allow("s3:GetObject", "*")))
    return f"arn:aws:iam::123456789012:role/{name}-job"


def trust(principal: str) -> str:
    return document({"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"AWS": principal}})


def assume(clients: Clients, arn: str, **options: Any) -> Any:
    return outcome(lambda: clients("sts").assume_role(RoleArn=arn, RoleSessionName="job", **options))


def test_role_that_trusts_the_caller_is_assumed(role: Role, job_role: str) -> None:
    assert assume(role(), job_role) == ALLOWED


def test_role_that_does_not_trust_the_caller_is_denied(role: Role, name: str) -> None:
    assert assume(role(allow("sts:AssumeRole", "*")), f"arn:aws:iam::123456789012:role/{name}") == DENIED


def test_trust_of_the_account_needs_a_policy_of_the_caller(
    client: Client, role: Role, name: str, job_role: str
) -> None:
    client("iam").update_assume_role_policy(RoleName=f"{name}-job", PolicyDocument=trust(ACCOUNT_ROOT))
    clients = role()
    assert assume(clients, job_role) == DENIED
    policy = document(allow("sts:AssumeRole", job_role))
    client("iam").put_role_policy(RoleName=name, PolicyName="more", PolicyDocument=policy)
    assert assume(clients, job_role) == ALLOWED


def test_session_policy_limits_the_role(
    aws: EmulatedAws, client: Client, name: str, job_role: str, bucket: str
) -> None:
    policy = document(allow("s3:GetObject", f"arn:aws:s3:::{bucket}/first/*"), allow("s3:PutObject", "*"))
    s3 = session(aws, client, f"{name}-job", Policy=policy)("s3")
    assert outcome(lambda: s3.get_object(Bucket=bucket, Key="first/x")) == ALLOWED
    assert outcome(lambda: s3.get_object(Bucket=bucket, Key="other/x")) == DENIED
    assert outcome(lambda: s3.put_object(Bucket=bucket, Key="first/y", Body=b"")) == DENIED


def test_denial_of_a_session_policy_has_precedence(
    aws: EmulatedAws, client: Client, name: str, job_role: str, bucket: str
) -> None:
    s3 = session(aws, client, f"{name}-job", Policy=document(allow("*", "*"), deny("s3:GetObject", "*")))("s3")
    assert outcome(lambda: s3.get_object(Bucket=bucket, Key="first/x")) == DENIED


def test_session_policy_of_2049_characters_is_refused(role: Role, job_role: str) -> None:
    policy = document(allow("s3:GetObject", ["arn:aws:s3:::bucket/" + "x" * 2048]))
    assert assume(role(), job_role, Policy=policy) == ("ValidationError", 400)


def test_chained_session_is_limited_to_one_hour(role: Role, job_role: str) -> None:
    clients = role()
    assert assume(clients, job_role, DurationSeconds=3601) == ("ValidationError", 400)
    assert assume(clients, job_role, DurationSeconds=3600) == ALLOWED
