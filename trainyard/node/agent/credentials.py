"""Credentials of the job: sessions of its role, limited to one run, over the container credentials endpoint.

AWS SDKs and CLI request them from AWS_CONTAINER_CREDENTIALS_FULL_URI with the token in
AWS_CONTAINER_AUTHORIZATION_TOKEN. The job cannot reach the metadata service, which has the credentials of the node.
Source: https://docs.aws.amazon.com/sdkref/latest/guide/feature-container-credentials.html
"""

import json
import logging
import secrets
import threading
import time
from collections.abc import Iterator
from datetime import UTC
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from trainyard.aws.clients import client
from trainyard.models.layout import RunLayout, split_s3_uri
from trainyard.models.manifest import Manifest
from trainyard.models.run import RunRecord
from trainyard.node.identity import ROOT

ADDRESS, PATH = "127.0.0.1", "/credentials"
# Outside of the ports of outgoing connections (net.ipv4.ip_local_port_range), so that an agent that restarts gets it
# again. Rehearsed nodes without a machine share their address: they use any free port.
PORT = 7444 if Path("/") == ROOT else 0
# The longest session of a role that another role assumes:
# https://docs.aws.amazon.com/IAM/latest/UserGuide/id_roles.html#iam-term-role-chaining
SESSION_SECONDS = 3600
# SDKs renew their credentials up to 15 minutes before these expire: a session is not passed on after half of its time.
RENEW_SECONDS = SESSION_SECONDS / 2
EXPIRY_MARGIN_SECONDS = 120
REQUEST_SECONDS, MAXIMUM_CONNECTIONS = 5, 64  # of the endpoint: a job may open any number of connections
MAXIMUM_POLICY_CHARACTERS = 2048  # https://docs.aws.amazon.com/STS/latest/APIReference/API_AssumeRole.html
LOG = logging.getLogger("agent.credentials")


def session_policy(manifest: Manifest, run: RunRecord) -> str:
    """Return the policy of the job's sessions: its run's checkpoints and results, and the data that it reads.

    Keys are those of the role's policy. Names of objects may be listed: S3 reports a missing object as 403 otherwise.
    Raises ValueError if the policy is longer than STS allows.
    """
    layout, job, bucket = RunLayout(run.run), run.job, f"arn:{manifest.partition}:s3:::{manifest.data_bucket}"
    written = [f"{bucket}/{prefix}*" for prefix in (layout.checkpoints, layout.results)]
    buckets, read = {bucket}, []
    for uri in (job.data_uri, job.model_uri if not job.reads_hub else None):
        if uri is not None:
            name, prefix = split_s3_uri(uri)
            buckets.add(f"arn:{manifest.partition}:s3:::{name}")
            read += [f"arn:{manifest.partition}:s3:::{name}/{key}" for key in (f"{prefix}*", prefix.rstrip("/")) if key]
    if job.resume:
        read.append(f"{bucket}/{RunLayout(job.resume).checkpoints}*")
    actions = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"]
    statements = [
        _allow(["s3:ListBucket"], sorted(buckets)),
        _allow(["kms:Decrypt", "kms:GenerateDataKey"], ["*"]),  # the role's policy names the keys
        _allow(actions, written),
        *([_allow(["s3:GetObject"], sorted(set(read)))] if read else []),
    ]
    policy = json.dumps({"Version": "2012-10-17", "Statement": statements}, separators=(",", ":"))
    if len(policy) > MAXIMUM_POLICY_CHARACTERS:
        raise ValueError(
            f"the session policy of the job has {len(policy)} characters, STS allows {MAXIMUM_POLICY_CHARACTERS}: "
            "use shorter prefixes for job.data and job.model"
        )
    return policy


def _allow(actions: list[str], resources: list[str]) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": actions, "Resource": resources}


class JobCredentials:
    """Current credentials of the job of one run, renewed when they are requested."""

    def __init__(self, manifest: Manifest, run: RunRecord, instance: str) -> None:
        self._sts = client("sts", manifest.region)
        self._request = {
            "RoleArn": manifest.job_role_arn,
            "RoleSessionName": instance,
            "Policy": session_policy(manifest, run),
            "DurationSeconds": SESSION_SECONDS,
        }
        self._lock = threading.Lock()
        self._renewed_at, self._current = float("-inf"), dict[str, str]()

    def get(self) -> dict[str, str]:
        """Return AccessKeyId, SecretAccessKey, Token and Expiration (ISO 8601, UTC). Raises the error of STS."""
        with self._lock:
            age = time.monotonic() - self._renewed_at
            if age > RENEW_SECONDS:
                try:
                    session = self._sts.assume_role(**self._request)["Credentials"]
                except Exception as error:
                    if age > SESSION_SECONDS - EXPIRY_MARGIN_SECONDS:
                        raise
                    LOG.warning("the credentials of the job are not renewed: %s: %s", type(error).__name__, error)
                    return self._current
                self._current = {
                    "AccessKeyId": session["AccessKeyId"],
                    "SecretAccessKey": session["SecretAccessKey"],
                    "Token": session["SessionToken"],
                    "Expiration": session["Expiration"].astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                }
                self._renewed_at = time.monotonic()
            return self._current


class CredentialsServer:
    """Serves the credentials to processes of the node that have the token, until `close`.

    `port`: of an earlier server whose address a running job has; 0: a free port. `token`: as of that server.
    """

    def __init__(self, credentials: JobCredentials, port: int = 0, token: str | None = None) -> None:
        self.token = token or secrets.token_urlsafe(32)
        self._server = _Server((ADDRESS, port), _handler(credentials, self.token))
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="credentials", daemon=True)
        self._thread.start()

    def variables(self) -> Iterator[tuple[str, str]]:
        """Yield the environment variables by which AWS SDKs find the endpoint."""
        yield "AWS_CONTAINER_CREDENTIALS_FULL_URI", f"http://{ADDRESS}:{self.port}{PATH}"
        yield "AWS_CONTAINER_AUTHORIZATION_TOKEN", self.token
        yield "AWS_EC2_METADATA_DISABLED", "true"

    def close(self) -> None:
        """Close the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    """A server that closes connections above MAXIMUM_CONNECTIONS."""

    daemon_threads = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._connections = threading.BoundedSemaphore(MAXIMUM_CONNECTIONS)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._connections.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.release()


def _handler(credentials: JobCredentials, token: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_SECONDS

        def do_GET(self) -> None:
            authorization = self.headers.get("Authorization", "")
            if self.path != PATH or not secrets.compare_digest(authorization.encode(), token.encode()):
                return self._respond(403, {"Message": "the token is not valid"})
            try:
                return self._respond(200, credentials.get())
            except Exception as error:
                LOG.warning("no credentials for the job: %s: %s", type(error).__name__, error)
                return self._respond(500, {"Message": f"{type(error).__name__}: {error}"})

        def _respond(self, status: int, content: dict[str, str]) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            for name, value in (("Content-Type", "application/json"), ("Content-Length", str(len(body)))):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing: SDKs request credentials often."""

    return Handler
