"""Another user of the machine cannot use a rehearsal: not its account, nor its metadata services, files or provider."""

import os
import shutil
import socket
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import grpc
import pytest
from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from pulumi.runtime.proto import provider_pb2, provider_pb2_grpc

from rehearsal.adapter.provider import Provider, serve_provider
from rehearsal.aws.process import EmulatedAws
from rehearsal.hypervisor.metadata import InstanceMetadata, MetadataServer
from rehearsal.kept.environment import write_environment
from rehearsal.locks import stack_lock
from tests.trainyard.node.test_bootstrap import INSTANCE
from trainyard.models.kept_rehearsal import DESCRIPTION, find_kept_rehearsal

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a process of another user needs root")

OTHER_USER, TIMEOUT_SECONDS = 65534, 60
DESCRIBE = b"Action=DescribeVpcs&Version=2016-11-15"
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
T = TypeVar("T")


def become_other_user() -> None:
    """Change the user of this process permanently, to `nobody`."""
    os.setgroups([])
    os.setgid(OTHER_USER)
    os.setuid(OTHER_USER)


def as_other_user(call: Callable[..., T], *arguments: Any) -> T:
    """Return the result of a function that runs in a process of the user `nobody`."""
    with ProcessPoolExecutor(1, mp_context=get_context("fork"), initializer=become_other_user) as pool:
        return pool.submit(call, *arguments).result(TIMEOUT_SECONDS)


def status(url: str, method: str, headers: dict[str, str], body: bytes | None = None) -> int:
    """Return the HTTP status of a request."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers, method=method), timeout=10) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder that all users can enter, as a project is."""
    created = Path(tempfile.mkdtemp(prefix="trainyard-"))
    created.chmod(0o755)
    yield created
    shutil.rmtree(created)


@pytest.fixture(scope="module")
def aws(folder: Path) -> Iterator[EmulatedAws]:
    with EmulatedAws.start(folder / "aws") as running:
        yield running


@pytest.mark.parametrize("keys", [("testing", "testing"), ("AKIAREHEARSALOPERATE", "rehearsal")])
def test_calls_with_known_keys_are_refused(aws: EmulatedAws, keys: tuple[str, str]) -> None:
    query = AWSRequest("POST", f"{aws.endpoint}/", dict(FORM), DESCRIBE)
    SigV4Auth(Credentials(*keys), "ec2", "us-east-1").add_auth(query)
    bucket = AWSRequest("PUT", f"{aws.endpoint}/{keys[0].lower()}-bucket")
    S3SigV4Auth(Credentials(*keys), "s3", "us-east-1").add_auth(bucket)
    assert as_other_user(status, query.url, "POST", dict(query.headers.items()), DESCRIBE) == 401
    assert as_other_user(status, bucket.url, "PUT", dict(bucket.headers.items())) == 403


@pytest.mark.parametrize(
    ("path", "method", "body"),
    [
        ("", "GET", None),
        ("anonymous-bucket", "PUT", None),
        ("moto-api/reset", "POST", b""),
        ("_rehearsal/instances", "GET", None),
        ("_rehearsal/clock", "POST", b'{"advance_seconds": 1}'),
    ],
)
def test_requests_without_keys_are_refused(aws: EmulatedAws, path: str, method: str, body: bytes | None) -> None:
    assert as_other_user(status, f"{aws.endpoint}/{path}", method, {}, body) == 403


def test_metadata_service_is_refused() -> None:
    metadata = InstanceMetadata(lambda: INSTANCE, lambda role: {"Expiration": "2099-01-01T00:00:00Z"})
    server = MetadataServer(metadata, socket.create_server(("127.0.0.1", 0)))
    try:
        base = f"http://{urlsplit(server.endpoint).netloc}"
        ttl = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
        assert as_other_user(status, f"{base}/latest/api/token", "PUT", ttl) == 403
        assert status(f"{server.endpoint}/latest/api/token", "PUT", ttl) == 200
    finally:
        server.close()


def test_files_of_the_account_cannot_be_read(aws: EmulatedAws, folder: Path) -> None:
    for call in (os.listdir, os.stat):
        with pytest.raises(PermissionError):
            as_other_user(call, folder / "aws" / ("" if call is os.listdir else "journal.jsonl"))


def test_folder_of_a_rehearsal_cannot_be_read(folder: Path) -> None:
    rehearsal = folder / "build/rehearsal/local"
    rehearsal.mkdir(parents=True)  # by an earlier version, with the default mode
    with stack_lock(rehearsal, "local"):
        write_environment(rehearsal, "local", {"AWS_SECRET_ACCESS_KEY": "secret"})
        with pytest.raises(PermissionError):
            as_other_user(os.listdir, rehearsal)
        with pytest.raises(PermissionError):
            as_other_user(Path.read_text, rehearsal / "environment")


def test_environment_of_a_kept_rehearsal_cannot_be_read(folder: Path) -> None:
    file = write_environment(folder, "local", {"AWS_SECRET_ACCESS_KEY": "secret"})
    with pytest.raises(PermissionError):
        as_other_user(Path.read_text, file)


def check_config(port: int) -> str:
    """Return the status of a call of the provider on this port."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            provider_pb2_grpc.ResourceProviderStub(channel).GetSchema(provider_pb2.GetSchemaRequest(), timeout=10)
        except grpc.RpcError as error:
            return str(error.code().name)
    return "OK"


def test_provider_is_refused(account: EmulatedAws, tmp_path: Path) -> None:
    with serve_provider(Provider(tmp_path, account.region)) as port:
        assert as_other_user(check_config, port) == "PERMISSION_DENIED"
        assert check_config(port) == "OK"


def test_kept_rehearsal_is_not_listed(folder: Path) -> None:
    rehearsal = folder / "build/rehearsal/kept"
    with stack_lock(rehearsal, "kept"):
        (rehearsal / DESCRIPTION).write_text("{}")
        assert as_other_user(find_kept_rehearsal, rehearsal) is None
