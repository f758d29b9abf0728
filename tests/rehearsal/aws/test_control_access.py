"""The control API needs its token, and no request of a web page is served."""

import json
import urllib.error
import urllib.request

import pytest

from rehearsal.aws.account_file import TOKEN_HEADER
from rehearsal.aws.process import EmulatedAws


def status(aws: EmulatedAws, path: str, **headers: str) -> int:
    """Return the HTTP status of a GET. Underscores in header names become hyphens."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{aws.endpoint}{path}", headers=named), timeout=10) as page:
            json.load(page)
            return int(page.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize("path", ["instances", "clock", "faults", "nonsense"])
def test_control_api_needs_the_token(aws: EmulatedAws, path: str) -> None:
    assert status(aws, f"/_rehearsal/{path}") == 403
    assert status(aws, f"/_rehearsal/{path}", **{TOKEN_HEADER: aws.secrets.operator.secret}) == 403


def test_control_api_is_not_changed_without_the_token(aws: EmulatedAws) -> None:
    before = aws.now()
    request = urllib.request.Request(f"{aws.endpoint}/_rehearsal/clock", b'{"advance_seconds": 100000}')
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(request, timeout=10)
    assert aws.now() < before + 50000


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("Origin", "http://127.0.0.1"),
        ("Origin", "null"),
        ("Host", "attacker.example"),
        ("Host", "attacker.example:{port}"),
        ("Host", "10.0.0.1:{port}"),
        ("Host", "localhost.attacker.example:{port}"),
        ("Host", "[:{port}"),
        ("Host", ""),
        ("Host", "127.0.0.1.attacker.example:{port}"),
    ],
)
def test_request_of_a_web_page_is_refused_with_the_token(aws: EmulatedAws, header: str, value: str) -> None:
    port = aws.endpoint.rpartition(":")[2]
    headers = {TOKEN_HEADER: aws.secrets.token, header: value.format(port=port)}
    assert status(aws, "/_rehearsal/clock", **headers) == 403


@pytest.mark.parametrize("host", ["127.0.0.1", "127.77.3.4", "localhost", "169.254.77.1", "[::1]"])
def test_request_to_a_local_address_is_served(aws: EmulatedAws, host: str) -> None:
    port = aws.endpoint.rpartition(":")[2]
    assert status(aws, "/_rehearsal/clock", **{TOKEN_HEADER: aws.secrets.token, "Host": f"{host}:{port}"}) == 200
