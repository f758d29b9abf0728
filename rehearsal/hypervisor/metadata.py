"""The EC2 instance metadata service of a node: IMDSv2 over HTTP, one server per node.

Paths as in the EC2 user guide, "Instance metadata categories". A request without a session token gets status 401.

On EC2 only the instance reaches its service. All users of this machine reach a loopback address: there all paths begin
with a secret, which is a part of the endpoint in the environment of the node.
"""

import hmac
import json
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from typing import Any

from rehearsal.browser_requests import reason_to_refuse

TOKEN_HEADER = "X-aws-ec2-metadata-token"  # noqa: S105 (the name of a header)
_TTL_HEADER = f"{TOKEN_HEADER}-ttl-seconds"
_PATH = re.compile(r"/(?:latest|\d{4}-\d\d-\d\d)(/.*)?")  # cloud-init uses a dated version
_MAX_TTL_SECONDS = 21600
_RENEW_SECONDS = 300

Credentials = Mapping[str, str]
"""AccessKeyId, SecretAccessKey, Token and Expiration (ISO 8601, UTC)."""


class InstanceMetadata:
    """The metadata of one instance.

    `get_record` returns the current InstanceRecord as a mapping; it is called for each request because tags and the
    lifecycle state change. `assume_role` returns credentials of a role.
    """

    def __init__(self, get_record: Callable[[], Mapping[str, Any]], assume_role: Callable[[str], Credentials]) -> None:
        self._get_record, self._assume_role = get_record, assume_role
        self._tokens: dict[str, float] = {}
        self._credentials: Credentials | None = None
        self._lock = threading.Lock()

    def create_token(self, ttl_seconds: int) -> str:
        """Return a new session token that is valid for `ttl_seconds`."""
        token = secrets.token_urlsafe(32)
        self._tokens[token] = time.monotonic() + ttl_seconds
        return token

    def is_valid(self, token: str | None) -> bool:
        """Return whether the session token exists and has not expired."""
        return token is not None and self._tokens.get(token, 0.0) > time.monotonic()

    def credentials(self) -> Credentials | None:
        """Return credentials of the instance's role, renewed before they expire; None without a role."""
        role = self._get_record()["role_name"]
        if role is None:
            return None
        with self._lock:
            credentials = self._credentials
            if credentials is None or _seconds_valid(credentials) < _RENEW_SECONDS:
                self._credentials = credentials = self._assume_role(role)
            return credentials

    def page(self, path: str) -> str | None:
        """Return the page at a path below /latest/; None if it does not exist. A folder's page lists its entries."""
        node: Any = self._tree()
        for part in [part for part in path.strip("/").split("/") if part]:
            node = node.get(part) if isinstance(node, dict) else None
        if isinstance(node, dict):
            return "\n".join(name + ("/" if isinstance(value, dict) else "") for name, value in node.items())
        return None if node is None else str(node)

    def _tree(self) -> dict[str, Any]:
        record = self._get_record()
        zone, address = record["zone"], record["private_ip"]
        tree: dict[str, Any] = {
            "dynamic": {
                "instance-identity": {
                    "document": json.dumps(
                        {
                            "instanceId": record["id"],
                            "instanceType": record["instance_type"],
                            "imageId": record["image"],
                            "privateIp": address,
                            "availabilityZone": zone,
                            "region": zone[:-1],
                        }
                    )
                }
            },
            "meta-data": {
                "ami-id": record["image"],
                "instance-id": record["id"],
                "instance-type": record["instance_type"],
                "local-ipv4": address,
                "local-hostname": f"ip-{address.replace('.', '-')}.ec2.internal",
                "placement": {"availability-zone": zone, "region": zone[:-1]},
                "tags": {"instance": dict(record["tags"])},
            },
        }
        if record["user_data"]:
            tree["user-data"] = record["user_data"]
        if record["interrupted_time"] is not None:
            termination_time = _format_time(record["interrupted_time"])
            tree["meta-data"]["spot"] = {
                "instance-action": json.dumps({"action": "terminate", "time": termination_time}),
                "termination-time": termination_time,
            }
        if record["autoscaling_group"]:
            tree["meta-data"]["autoscaling"] = {"target-lifecycle-state": record["lifecycle_state"]}
        credentials = self.credentials()
        if credentials is not None:
            body = {"Code": "Success", "Type": "AWS-HMAC", "LastUpdated": _format_time(time.time()), **credentials}
            tree["meta-data"]["iam"] = {"security-credentials": {record["role_name"]: json.dumps(body)}}
        return tree


def _seconds_valid(credentials: Credentials) -> float:
    return (datetime.fromisoformat(credentials["Expiration"]) - datetime.now(UTC)).total_seconds()


def _format_time(unix_time: float) -> str:
    return datetime.fromtimestamp(unix_time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class MetadataServer:
    """Serves the metadata of one instance on a listening socket until it is closed."""

    def __init__(self, metadata: InstanceMetadata, listener: socket.socket) -> None:
        address, port = listener.getsockname()
        prefix = f"/{secrets.token_urlsafe(32)}" if ip_address(address).is_loopback else ""
        self._server = ThreadingHTTPServer((address, port), _handler(metadata, prefix), bind_and_activate=False)
        self._server.socket.close()
        self._server.socket = listener
        self._server.daemon_threads = True
        self.endpoint = f"http://{address}:{port}{prefix}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self.serve()

    def serve(self) -> None:
        """Start to serve requests in a thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the server and close its socket."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(metadata: InstanceMetadata, prefix: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def parse_request(self) -> bool:
            """Parse a request, and refuse it if a browser sent it or if the path does not begin with the secret."""
            if not super().parse_request():
                return False
            reason = reason_to_refuse(self.headers.get("Host"), self.headers.get("Origin"))
            start, self.path = self.path[: len(prefix)], self.path[len(prefix) :]
            if reason or not hmac.compare_digest(start.encode(), prefix.encode()):
                self.send_error(403, explain=reason)
                return False
            return True

        def do_PUT(self) -> None:
            ttl = self.headers.get(_TTL_HEADER, "")
            if self.path != "/latest/api/token" or not ttl.isdigit() or not 1 <= int(ttl) <= _MAX_TTL_SECONDS:
                return self._respond(400, "Bad Request")
            return self._respond(200, metadata.create_token(int(ttl)), {_TTL_HEADER: ttl})

        def do_GET(self) -> None:
            if not metadata.is_valid(self.headers.get(TOKEN_HEADER)):
                return self._respond(401, "Unauthorized")
            match = _PATH.fullmatch(self.path)
            page = metadata.page(match[1] or "") if match else None
            return self._respond(404, "Not Found") if page is None else self._respond(200, page)

        def _respond(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
            body = text.encode()
            self.send_response(status)
            for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing: the journal of the emulated AWS records API calls."""

    return Handler
