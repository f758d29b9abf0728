"""Errors of services that may succeed later."""

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, ReadTimeoutError

from trainyard.aws.outages import is_outage


def response(code: str, status: int) -> ClientError:
    return ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "GetParameter")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (response("ThrottlingException", 400), True),
        (response("SlowDown", 503), True),
        (response("InternalError", 500), True),
        (EndpointConnectionError(endpoint_url="https://s3"), True),
        (ReadTimeoutError(endpoint_url="https://s3"), True),
        (ConnectionResetError("reset"), True),
        (response("AccessDenied", 403), False),
        (response("ParameterNotFound", 400), False),
        (ValueError("SHA-256"), False),
        (FileNotFoundError("train.py"), False),
    ],
)
def test_error_of_a_service_that_does_not_respond(error: Exception, expected: bool) -> None:
    assert is_outage(error) is expected
