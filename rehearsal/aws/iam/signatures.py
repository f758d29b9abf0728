"""Verification of the signature of each API call: an emulated account serves only callers who have one of its keys.

Sources: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html,
https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-query-string-auth.html (presigned URLs),
https://docs.aws.amazon.com/AmazonS3/latest/API/RESTAuthentication.html (presigned URLs of version 2).

Not verified: time and expiration, and the body of a call that signs the digest in X-Amz-Content-SHA256 or a constant
such as STREAMING-UNSIGNED-PAYLOAD-TRAILER. A proxy could change these, but none is on the loopback interface.
"""

import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass
from email.message import Message
from typing import Any
from urllib.parse import parse_qs, urlsplit, urlunsplit

from botocore.auth import HmacV1Auth, S3SigV4Auth, S3SigV4QueryAuth, SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.compat import HTTPHeaders
from botocore.credentials import Credentials
from moto.iam.models import iam_backends
from moto.sts.models import sts_backends

from rehearsal.aws.account_file import AccountSecrets
from rehearsal.aws.active_faults import ApiError
from rehearsal.aws.iam.callers import unknown_key_error
from rehearsal.aws.operations import Call
from rehearsal.aws.process import ACCOUNT

_HEADER = re.compile(
    r"AWS4-HMAC-SHA256 Credential=[^/,\s]+/\d{8}/([^/]+)/([^/]+)/aws4_request,\s*"
    r"SignedHeaders=([^,\s]+),\s*Signature=([0-9a-f]{64})"
)
_CREDENTIAL = re.compile(r"[^/]+/\d{8}/([^/]+)/([^/]+)/aws4_request")
_TOKEN_HEADER = "x-amz-security-token"  # noqa: S105 (the name of a header)


@dataclass(frozen=True)
class Request:
    """A request as it was received: path and query are not decoded, and headers have their original values."""

    method: str
    url: str
    headers: "Message[str, str]"
    body: bytes

    def query(self) -> dict[str, str]:
        """Return the first value of each parameter of the query."""
        return {name: values[0] for name, values in parse_qs(urlsplit(self.url).query).items()}


def verify_signature(account: AccountSecrets, call: Call, in_json: bool, request: Request) -> None:
    """Raise ApiError with AWS's error unless a key of the account, or of a role session, signed the request."""
    if call.access_key is None:
        raise _unsigned_error(call, in_json)
    credentials = _find_credentials(account, call.access_key)
    if credentials is None:
        raise unknown_key_error(call, in_json)
    query = request.query()
    token = request.headers.get(_TOKEN_HEADER) or query.get("X-Amz-Security-Token") or query.get(_TOKEN_HEADER)
    if not hmac.compare_digest((token or "").encode(), (credentials.token or "").encode()):
        raise unknown_key_error(call, in_json)
    if not any(hmac.compare_digest(*pair) for pair in _signatures(credentials, request, query)):
        raise _wrong_signature_error(call, in_json)


def _find_credentials(account: AccountSecrets, key_id: str) -> Credentials | None:
    """Return the credentials of a principal of the account, a role session, or a user with this access key."""
    if key := account.find(key_id):
        return Credentials(key.id, key.secret)
    sessions: Any = sts_backends
    for _, _, backend in sessions.iter_backends():
        if session := backend.get_assumed_role_from_access_key(key_id):
            return Credentials(key_id, session.secret_access_key, session.session_token)
    user_key = iam_backends[ACCOUNT]["aws"].access_keys.get(key_id)
    is_usable = user_key is not None and user_key.status == "Active" and not key_id.startswith("ASIA")
    return Credentials(key_id, user_key.secret_access_key) if is_usable and user_key else None


def _signatures(credentials: Credentials, request: Request, query: dict[str, str]) -> Iterable[tuple[bytes, bytes]]:
    """Yield the signature of the request and the expected signature; nothing for a malformed one."""
    authorization = _HEADER.fullmatch(request.headers.get("Authorization", ""))
    credential = _CREDENTIAL.fullmatch(query.get("X-Amz-Credential", ""))
    if authorization:
        region, service, names, signature = authorization.groups()
        signer = (S3SigV4Auth if service == "s3" else SigV4Auth)(credentials, service, region)
        date = request.headers.get("X-Amz-Date", "")
        yield signature.encode(), _version_4(signer, request, request.url, names, date)
    elif "Authorization" in request.headers:
        return
    elif credential:
        region, service = credential.groups()
        signer = (S3SigV4QueryAuth if service == "s3" else SigV4QueryAuth)(credentials, service, region)
        names, date = query.get("X-Amz-SignedHeaders", ""), query.get("X-Amz-Date", "")
        url = _without_signature(request.url)
        yield query.get("X-Amz-Signature", "").encode(), _version_4(signer, request, url, names, date)
    elif "AWSAccessKeyId" in query:
        yield query.get("Signature", "").encode(), _version_2(credentials, request, query)


def _version_4(signer: SigV4Auth, request: Request, url: str, signed_headers: str, date: str) -> bytes:
    """Return the signature that botocore calculates for the same request."""
    signed = AWSRequest(method=request.method, url=url, data=request.body)
    for name in signed_headers.split(";"):
        for value in request.headers.get_all(name, []):
            signed.headers[name] = value
    signed.context["timestamp"] = date
    text = signer.string_to_sign(signed, signer.canonical_request(signed))
    return str(signer.signature(text, signed)).encode()


def _without_signature(url: str) -> str:
    """Return the URL without the parameter that its signature does not include."""
    parts = urlsplit(url)
    query = "&".join(part for part in parts.query.split("&") if not part.startswith("X-Amz-Signature="))
    return urlunsplit(parts._replace(query=query))


class _Version2(HmacV1Auth):  # type: ignore[misc]
    """Signs with the expiration of a URL in place of the date."""

    def __init__(self, credentials: Credentials, expires: str) -> None:
        super().__init__(credentials)
        self._expires = expires

    def _get_date(self) -> str:
        return self._expires


def _version_2(credentials: Credentials, request: Request, query: dict[str, str]) -> bytes:
    headers = HTTPHeaders()
    for name, value in request.headers.items():
        if name.lower().startswith("x-amz-") or name.lower() in {"content-md5", "content-type"}:
            headers[name] = value
    signer = _Version2(credentials, query.get("Expires", ""))
    return str(signer.get_signature(request.method, urlsplit(request.url), headers)).encode()


def _unsigned_error(call: Call, in_json: bool) -> ApiError:
    """Return the error for a call without a key. S3 has anonymous callers, who may do nothing in this account.

    Sources: https://docs.aws.amazon.com/amazondynamodb/latest/developerguide/Programming.Errors.html (JSON),
    https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html (S3), and the "Common Errors" of each API.
    """
    if in_json:
        text = "Request must contain a valid (registered) AWS access key ID."
        return ApiError("400 Bad Request", "MissingAuthenticationTokenException", text)
    if call.service == "s3":
        return ApiError("403 Forbidden", "AccessDenied", "Access Denied")
    return ApiError("403 Forbidden", "MissingAuthenticationToken", "Request is missing Authentication Token")


def _wrong_signature_error(call: Call, in_json: bool) -> ApiError:
    """Return the error for another secret, as each service reports it.

    Source: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-troubleshooting.html. EC2 reports it as an
    unknown key: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html (AuthFailure).
    """
    if call.service == "ec2":
        return unknown_key_error(call, in_json)
    message = "The request signature we calculated does not match the signature you provided."
    if in_json:
        return ApiError("400 Bad Request", "InvalidSignatureException", message)
    return ApiError("403 Forbidden", "SignatureDoesNotMatch", message)
