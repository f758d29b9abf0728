"""A node's EC2 instance metadata service: IMDSv2 only, over HTTP, one server a node.

Paths as in the EC2 user guide, "Instance metadata categories". A request without a session token is 401. Beside them
one page that AWS has not, `/container-credentials`: the role's credentials as the container provider of the AWS SDKs
reads them, since s3torchconnector knows no other address of a metadata service than 169.254.169.254:80.
"""

import json
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN_HEADER = "X-aws-ec2-metadata-token"  # noqa: S105 (a header's name)
CONTAINER_PAGE = "/container-credentials"
_TTL_HEADER = f"{TOKEN_HEADER}-ttl-seconds"
_PATH = re.compile(r"/(?:latest|\d{4}-\d\d-\d\d)(/.*)?")  # cloud-init asks by the service's version
_LONGEST_TTL = 21600
_RENEW_SECONDS = 300

Credentials = Mapping[str, str]
"""AccessKeyId, SecretAccessKey, Token and Expiration (ISO 8601, UTC)."""


class Metadata:
    """What one node's service answers. `truth` is asked anew each time: tags and life-cycle state change."""

    def __init__(self, truth: Callable[[], Mapping[str, Any]], assume: Callable[[str], Credentials]) -> None:
        self._truth, self._assume = truth, assume
        self._tokens: dict[str, float] = {}
        self._credentials: Credentials | None = None
        self._lock = threading.Lock()

    def new_token(self, seconds: int) -> str:
        token = secrets.token_urlsafe(32)
        self._tokens[token] = time.monotonic() + seconds
        return token

    def accepts(self, token: str | None) -> bool:
        return token is not None and self._tokens.get(token, 0.0) > time.monotonic()

    def credentials(self) -> Credentials | None:
        """Credentials of the instance's role, renewed before they expire; None without a role."""
        role = self._truth()["role_name"]
        if role is None:
            return None
        with self._lock:
            known = self._credentials
            if known is None or _left(known) < _RENEW_SECONDS:
                self._credentials = known = self._assume(role)
            return known

    def page(self, path: str) -> str | None:
        """The page under /latest/, or None where there is none. A folder's page lists what is in it."""
        path = path.strip("/")
        found: Any = self._tree()
        for part in [one for one in path.split("/") if one]:
            found = found.get(part) if isinstance(found, dict) else None
        if isinstance(found, dict):
            return "\n".join(name + ("/" if isinstance(value, dict) else "") for name, value in found.items())
        return None if found is None else str(found)

    def _tree(self) -> dict[str, Any]:
        truth = self._truth()
        zone, address = truth["zone"], truth["private_ip"]
        tree: dict[str, Any] = {
            "dynamic": {
                "instance-identity": {
                    "document": json.dumps(
                        {
                            "instanceId": truth["id"],
                            "instanceType": truth["instance_type"],
                            "imageId": truth["image"],
                            "privateIp": address,
                            "availabilityZone": zone,
                            "region": zone[:-1],
                        }
                    )
                }
            },
            "meta-data": {
                "ami-id": truth["image"],
                "instance-id": truth["id"],
                "instance-type": truth["instance_type"],
                "local-ipv4": address,
                "local-hostname": f"ip-{address.replace('.', '-')}.ec2.internal",
                "placement": {"availability-zone": zone, "region": zone[:-1]},
                "tags": {"instance": dict(truth["tags"])},
            },
        }
        if truth["user_data"]:
            tree["user-data"] = truth["user_data"]
        if truth["interrupted_time"] is not None:
            ends = _utc(truth["interrupted_time"])
            tree["meta-data"]["spot"] = {
                "instance-action": json.dumps({"action": "terminate", "time": ends}),
                "termination-time": ends,
            }
        if truth["autoscaling_group"]:
            tree["meta-data"]["autoscaling"] = {"target-lifecycle-state": truth["lifecycle_state"]}
        credentials = self.credentials()
        if credentials is not None:
            body = {"Code": "Success", "Type": "AWS-HMAC", "LastUpdated": _now(), **credentials}
            tree["meta-data"]["iam"] = {"security-credentials": {truth["role_name"]: json.dumps(body)}}
        return tree


def _left(credentials: Credentials) -> float:
    return (datetime.fromisoformat(credentials["Expiration"]) - datetime.now(UTC)).total_seconds()


def _now() -> str:
    return _utc(time.time())


def _utc(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class MetadataServer:
    """Serves one node's metadata on a socket that listens, until closed."""

    def __init__(self, metadata: Metadata, listener: socket.socket) -> None:
        address, port = listener.getsockname()
        self._server = ThreadingHTTPServer((address, port), _handler(metadata), bind_and_activate=False)
        self._server.socket.close()
        self._server.socket = listener
        self._server.daemon_threads = True
        self.endpoint = f"http://{address}:{port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self.serve()

    def serve(self) -> None:
        """From now on it answers."""
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(metadata: Metadata) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            wish = self.headers.get(_TTL_HEADER, "")
            if self.path != "/latest/api/token" or not wish.isdigit() or not 1 <= int(wish) <= _LONGEST_TTL:
                return self._answer(400, "Bad Request")
            return self._answer(200, metadata.new_token(int(wish)), {_TTL_HEADER: wish})

        def do_GET(self) -> None:
            if self.path == CONTAINER_PAGE:
                found = metadata.credentials()
                return self._answer(404, "") if found is None else self._answer(200, json.dumps(dict(found)))
            if not metadata.accepts(self.headers.get(TOKEN_HEADER)):
                return self._answer(401, "Unauthorized")
            asked = _PATH.fullmatch(self.path)
            page = metadata.page(asked[1] or "") if asked else None
            return self._answer(404, "Not Found") if page is None else self._answer(200, page)

        def _answer(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
            body = text.encode()
            self.send_response(status)
            for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet: the journal of API calls is what a rehearsal keeps."""

    return Handler
