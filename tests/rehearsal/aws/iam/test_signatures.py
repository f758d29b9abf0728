"""Only calls that a key of the account signed are served. Each error is that of the service."""

import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import boto3
import pytest
from botocore import UNSIGNED
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from rehearsal.aws.account_file import AccessKey
from rehearsal.aws.process import EmulatedAws
from tests.rehearsal.aws.conftest import Client

Connect = Callable[..., Any]
CALLS: dict[str, Callable[[Any], Any]] = {
    "ec2": lambda client: client.describe_vpcs(),
    "s3": lambda client: client.list_buckets(),
    "iam": lambda client: client.list_roles(),
    "ssm": lambda client: client.describe_parameters(),
}
UNKNOWN_KEY = {
    "ec2": ("AuthFailure", 401),
    "s3": ("InvalidAccessKeyId", 403),
    "iam": ("InvalidClientTokenId", 403),
    "ssm": ("UnrecognizedClientException", 400),
}
WRONG_SECRET = {
    "ec2": ("AuthFailure", 401),
    "s3": ("SignatureDoesNotMatch", 403),
    "iam": ("SignatureDoesNotMatch", 403),
    "ssm": ("InvalidSignatureException", 400),
}
UNSIGNED_CALL = {
    "s3": ("AccessDenied", 403),
    "iam": ("MissingAuthenticationToken", 403),
    "ssm": ("MissingAuthenticationTokenException", 400),
}
FORM = "application/x-www-form-urlencoded"


@pytest.fixture(scope="module")
def connect(aws: EmulatedAws) -> Connect:
    """Return a function that returns a client with other credentials: id, secret and session token."""

    def client(service: str, *credentials: str, **options: Any) -> Any:
        config = Config(retries={"total_max_attempts": 1}, **options)
        session = boto3.Session(*credentials, region_name="us-east-1")
        return session.client(service, endpoint_url=aws.endpoint, config=config)

    return client


def refusal(call: Callable[[], Any]) -> tuple[str, int] | None:
    """Return the error code and the HTTP status of a refused call; None if it succeeds."""
    try:
        call()
    except ClientError as error:
        return str(error.response["Error"]["Code"]), int(error.response["ResponseMetadata"]["HTTPStatusCode"])
    return None


@pytest.mark.parametrize("service", CALLS)
def test_unknown_key_is_refused(connect: Connect, service: str) -> None:
    client = connect(service, "testing", "testing")
    assert refusal(lambda: CALLS[service](client)) == UNKNOWN_KEY[service]


@pytest.mark.parametrize("service", CALLS)
def test_wrong_secret_is_refused(aws: EmulatedAws, connect: Connect, service: str) -> None:
    client = connect(service, aws.secrets.operator.id, aws.secrets.adapter.secret)
    assert refusal(lambda: CALLS[service](client)) == WRONG_SECRET[service]


@pytest.mark.parametrize("service", UNSIGNED_CALL)
def test_unsigned_call_is_refused(connect: Connect, service: str) -> None:
    client = connect(service, signature_version=UNSIGNED)
    assert refusal(lambda: CALLS[service](client)) == UNSIGNED_CALL[service]


@pytest.mark.parametrize("path", ["/moto-api/data.json", "/moto-api/reset", "/latest/meta-data/"])
def test_unsigned_request_of_a_path_of_moto_is_refused(aws: EmulatedAws, path: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(f"{aws.endpoint}{path}", data=b"", timeout=10)


@pytest.fixture
def session_keys(client: Client) -> tuple[str, str, str]:
    """Id, secret and token of a role session."""
    arn = "arn:aws:iam::999999999999:role/other"
    keys = client("sts").assume_role(RoleArn=arn, RoleSessionName="s1")["Credentials"]
    return keys["AccessKeyId"], keys["SecretAccessKey"], keys["SessionToken"]


def test_session_is_accepted_only_with_its_token_and_its_secret(
    connect: Connect, session_keys: tuple[str, str, str]
) -> None:
    key, secret, token = session_keys
    assert refusal(connect("s3", key, secret, token).list_buckets) is None
    assert refusal(connect("s3", key, secret).list_buckets) == UNKNOWN_KEY["s3"]
    assert refusal(connect("s3", key, secret, f"{token}x").list_buckets) == UNKNOWN_KEY["s3"]
    assert refusal(connect("s3", key, f"{secret}x", token).list_buckets) == WRONG_SECRET["s3"]


def test_token_of_a_session_is_refused_with_another_key(
    aws: EmulatedAws, connect: Connect, session_keys: tuple[str, str, str]
) -> None:
    operator = aws.secrets.operator
    assert refusal(connect("s3", operator.id, operator.secret, session_keys[2]).list_buckets) == UNKNOWN_KEY["s3"]


def test_key_of_a_user_is_accepted_while_it_is_active(client: Client, connect: Connect, name: str) -> None:
    iam = client("iam")
    iam.create_user(UserName=name)
    key = iam.create_access_key(UserName=name)["AccessKey"]
    try:
        user = connect("ec2", key["AccessKeyId"], key["SecretAccessKey"])
        assert refusal(user.describe_vpcs) is None
        iam.update_access_key(UserName=name, AccessKeyId=key["AccessKeyId"], Status="Inactive")
        assert refusal(user.describe_vpcs) == UNKNOWN_KEY["ec2"]
    finally:
        iam.delete_access_key(UserName=name, AccessKeyId=key["AccessKeyId"])
        iam.delete_user(UserName=name)


def signed(aws: EmulatedAws, key: AccessKey, body: bytes) -> dict[str, str]:
    """Return the headers that sign a query request of EC2."""
    request = AWSRequest("POST", f"{aws.endpoint}/", {"Content-Type": FORM}, body)
    SigV4Auth(Credentials(key.id, key.secret), "ec2", "us-east-1").add_auth(request)
    return dict(request.headers.items())


def test_signature_includes_the_body(aws: EmulatedAws) -> None:
    headers = signed(aws, aws.secrets.operator, b"Action=DescribeVpcs&Version=2016-11-15")
    changed = urllib.request.Request(f"{aws.endpoint}/", b"Action=DescribeKeyPairs&Version=2016-11-15", headers)
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(changed, timeout=10)


def test_signature_includes_the_path_and_the_query(aws: EmulatedAws) -> None:
    body = b"Action=DescribeVpcs&Version=2016-11-15"
    headers = signed(aws, aws.secrets.operator, body)
    for url in (f"{aws.endpoint}/?Action=DeleteVpc", f"{aws.endpoint}/x"):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=10)


@pytest.mark.parametrize("version", ["s3", "s3v4"])
def test_presigned_url_is_valid_for_its_object_only(
    client: Client, connect: Connect, aws: EmulatedAws, name: str, version: str
) -> None:
    operator, bucket = aws.secrets.operator, f"presigned-{name}"
    client("s3").create_bucket(Bucket=bucket)
    for key in "ab":
        client("s3").put_object(Bucket=bucket, Key=key, Body=key.encode())
    s3 = connect("s3", operator.id, operator.secret, signature_version=version, s3={"addressing_style": "path"})
    url = s3.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "a"})
    with urllib.request.urlopen(url, timeout=10) as response:
        assert response.read() == b"a"
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(url.replace(f"{bucket}/a", f"{bucket}/b"), timeout=10)


@pytest.mark.parametrize("authorization", ["AWS4-HMAC-SHA256 Credential=", "Bearer x", "AWS {key}:x"])
def test_malformed_authorization_is_refused(aws: EmulatedAws, authorization: str) -> None:
    headers = {"Authorization": authorization.format(key=aws.secrets.operator.id)}
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(urllib.request.Request(f"{aws.endpoint}/", headers=headers), timeout=10)
