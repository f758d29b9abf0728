"""What API call a request is: service and operation under their names in IAM."""

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
    """One API call as signed. An unsigned one names no region."""

    service: str
    operation: str
    access_key: str | None
    region: str = ""

    @property
    def mutating(self) -> bool:
        return not self.operation.startswith(_READS)


def call_of(environ: dict[str, Any], body: bytes) -> Call:
    """Name the call. An unsigned request is S3's; an operation that can't be named is `Unknown`."""
    query = parse_qs(environ.get("QUERY_STRING", ""))
    signed = _CREDENTIAL.search(environ.get("HTTP_AUTHORIZATION", "")) or _CREDENTIAL.search(
        "Credential=" + query.get("X-Amz-Credential", [""])[0]
    )
    # S3's addresses may be signed the old way.
    access_key, region, service = signed.groups() if signed else (query.get("AWSAccessKeyId", [None])[0], "", "s3")
    return Call(_IAM_PREFIX.get(service, service), _operation(service, environ, body), access_key, region)


def _operation(service: str, environ: dict[str, Any], body: bytes) -> str:
    target = environ.get("HTTP_X_AMZ_TARGET")
    if target:
        return str(target).rpartition(".")[2]
    if environ.get("CONTENT_TYPE", "").startswith("application/x-www-form-urlencoded"):
        action = parse_qs(body.decode()).get("Action")
        if action:
            return action[0]
    action = parse_qs(environ.get("QUERY_STRING", "")).get("Action")
    if action:
        return action[0]
    try:
        operation, _ = get_service_router(service).match(BackendRequest(dict(environ)))
    except Exception:  # the router has an exception of its own for each way not to match
        return "Unknown"
    return str(operation.name)


_XML_CODE = re.compile(rb"<Code>([^<]*)</Code>")
_XML_MESSAGE = re.compile(rb"<Message>([^<]*)</Message>", re.IGNORECASE | re.DOTALL)


def error_of(status: int, body: bytes) -> tuple[str, str]:
    """Code and message of an error response, in XML or JSON. A response without a body has its status as code."""
    code = _XML_CODE.search(body)
    if code:
        message = _XML_MESSAGE.search(body)
        return code[1].decode(), message[1].decode() if message else ""
    try:
        told = json.loads(body)
        name = str(told.get("__type") or told.get("code") or status).rpartition("#")[2]
        return name, str(told.get("message") or told.get("Message") or "")
    except (ValueError, AttributeError):
        return str(status), body.decode(errors="replace")[:500]
