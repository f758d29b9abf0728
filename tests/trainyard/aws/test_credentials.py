"""Which errors report expired credentials."""

import pytest
from botocore.exceptions import ClientError, ConnectTimeoutError, UnauthorizedSSOTokenError

from trainyard.aws.credentials import describe_expiration


@pytest.mark.parametrize("code", ["ExpiredToken", "ExpiredTokenException", "RequestExpired"])
def test_code_of_each_protocol_is_an_expiration(code: str) -> None:
    error = ClientError({"Error": {"Code": code, "Message": "It has expired."}}, "DescribeVpcs")
    assert describe_expiration(error) == f"{code}: It has expired"


def test_session_that_cannot_be_renewed_is_an_expiration() -> None:
    assert "SSO session" in (describe_expiration(UnauthorizedSSOTokenError()) or "")


def test_other_errors_are_no_expiration() -> None:
    assert describe_expiration(ClientError({"Error": {"Code": "AccessDenied"}}, "GetObject")) is None
    assert describe_expiration(ConnectTimeoutError(endpoint_url="http://127.0.0.1")) is None
