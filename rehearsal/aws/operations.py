"""Identification of a request's API call: service and operation, named as in IAM."""

import json
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from moto.core.routing import get_service_router
from moto.moto_server.werkzeug_app import BackendRequest

_CREDENTIAL = re.compile(r"Credential=([^/,\s]+)/\d{8}/([^/]+)/([^/]+)/aws4_request")
_IAM_PREFIX = {"tagging": "tag", "monitoring": "cloudwatch"}
_READS = ("Describe", "Get", "List", "Head")


@dataclass(frozen=True)
class Call:
    """One API call. The region is from the signature; empty for an unsigned request."""

    service: str
    operation: str
    access_key: str | None
    region: str = ""

    @property
    def mutating(self) -> bool:
        """Whether the operation is other than Describe*, Get*, List* and Head*."""
        return not self.operation.startswith(_READS)


def parse_call(environ: dict[str, Any], body: bytes) -> Call:
    """Return the call of a request; an unidentified operation is `Unknown`.

    The service of an unsigned request is S3, or "" if the request is a form, which S3 does not use.
    """
    query = parse_qs(environ.get("QUERY_STRING", ""))
    credential = _CREDENTIAL.search(environ.get("HTTP_AUTHORIZATION", "")) or _CREDENTIAL.search(
        "Credential=" + query.get("X-Amz-Credential", [""])[0]
    )
    # A presigned S3 URL may use signature version 2.
    access_key, region, service = (
        credential.groups()
        if credential
        else (query.get("AWSAccessKeyId", [None])[0], "", "" if _is_form(environ) else "s3")
    )
    return Call(_IAM_PREFIX.get(service, service), _operation(service, environ, body), access_key, region)


def _is_form(environ: dict[str, Any]) -> bool:
    return str(environ.get("CONTENT_TYPE", "")).startswith("application/x-www-form-urlencoded")


def _operation(service: str, environ: dict[str, Any], body: bytes) -> str:
    target = environ.get("HTTP_X_AMZ_TARGET")
    if target:
        return str(target).rpartition(".")[2]
    if _is_form(environ):
        action = parse_qs(body.decode()).get("Action")
        if action:
            return action[0]
    action = parse_qs(environ.get("QUERY_STRING", "")).get("Action")
    if action:
        return action[0]
    try:
        operation, _ = get_service_router(service).match(BackendRequest(dict(environ)))
    except Exception:  # the router has a separate exception type for each kind of mismatch
        return "Unknown"
    return str(operation.name)


_XML_CODE = re.compile(rb"<Code>([^<]*)</Code>")
_XML_MESSAGE = re.compile(rb"<Message>([^<]*)</Message>", re.IGNORECASE | re.DOTALL)


def parse_error(status: int, body: bytes) -> tuple[str, str]:
    """Return code and message of an XML or JSON error response. Without a body, the status is the code."""
    code = _XML_CODE.search(body)
    if code:
        message = _XML_MESSAGE.search(body)
        return code[1].decode(), message[1].decode() if message else ""
    try:
        error = json.loads(body)
        name = str(error.get("__type") or error.get("code") or status).rpartition("#")[2]
        return name, str(error.get("message") or error.get("Message") or "")
    except (ValueError, AttributeError):
        return str(status), body.decode(errors="replace")[:500]
