"""The metadata service, accessed as an instance does."""

import json
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from rehearsal.hypervisor.backend import NodeSpec
from rehearsal.hypervisor.metadata import InstanceMetadata, MetadataServer
from rehearsal.hypervisor.process.backend import ProcessBackend
from tests.trainyard.node.test_bootstrap import INSTANCE


class Node:
    """A metadata server with its instance record, and the roles for which it requested credentials."""

    def __init__(self) -> None:
        self.record: dict[str, Any] = {**INSTANCE, "tags": {"trainyard:role": "workers"}, "autoscaling_group": "g"}
        self.assumed_roles: list[str] = []
        self.server = MetadataServer(
            InstanceMetadata(lambda: self.record, self.assume_role), socket.create_server(("127.0.0.1", 0))
        )

    def assume_role(self, role: str) -> dict[str, str]:
        """Return credentials that are valid for one hour."""
        self.assumed_roles.append(role)
        expires = datetime.now(UTC) + timedelta(hours=1)
        expiration = expires.strftime("%Y-%m-%dT%H:%M:%SZ")
        return {"AccessKeyId": "ASIA1", "SecretAccessKey": "s", "Token": "t", "Expiration": expiration}

    def request(self, path: str, method: str = "GET", **headers: str) -> str:
        """Send a request. Underscores in header names become hyphens."""
        http_headers = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(self.server.endpoint + path, method=method, headers=http_headers)
        with urllib.request.urlopen(request, timeout=5) as response:
            text: str = response.read().decode()
            return text

    def page(self, path: str) -> str:
        """Request a page with a session token."""
        token = self.request("/latest/api/token", "PUT", X_aws_ec2_metadata_token_ttl_seconds="60")
        return self.request(f"/latest/{path}", X_aws_ec2_metadata_token=token)


@pytest.fixture
def node() -> Iterator[Node]:
    """A node with a metadata server."""
    node = Node()
    yield node
    node.server.close()


def status(url: str, method: str = "GET", **headers: str) -> int:
    """Return the HTTP status of a refused request. Underscores in header names become hyphens."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(urllib.request.Request(url, method=method, headers=named), timeout=5)
    caught.value.close()
    return caught.value.code


TTL = {"X_aws_ec2_metadata_token_ttl_seconds": "60"}


@pytest.mark.parametrize("path", ["/latest/api/token", "/wrong/latest/api/token", "/"])
def test_request_outside_the_secret_path_is_refused(node: Node, path: str) -> None:
    base = f"http://{urlsplit(node.server.endpoint).netloc}"
    assert status(base + path, "PUT" if "token" in path else "GET", **TTL) == 403


def test_secret_path_differs_for_each_node(node: Node) -> None:
    other = Node()
    try:
        assert len({urlsplit(each.server.endpoint).path for each in (node, other)}) == 2
        assert len(urlsplit(node.server.endpoint).path) > 40
    finally:
        other.server.close()


@pytest.mark.parametrize("headers", [{"Origin": "http://127.0.0.1"}, {"Host": "attacker.example"}])
def test_request_of_a_web_page_is_refused(node: Node, headers: dict[str, str]) -> None:
    assert status(f"{node.server.endpoint}/latest/api/token", "PUT", **TTL, **headers) == 403


@pytest.mark.parametrize("path", ["/latest/meta-data/instance-id", "/container-credentials"])
def test_request_without_a_token_is_unauthorized(node: Node, path: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match="401"):
        node.request(path)


def test_programs_of_a_node_have_the_credentials_of_its_role(node: Node, tmp_path: Path) -> None:
    spec = NodeSpec(id="i-1", address="127.0.0.1", user_data="", metadata_endpoint=node.server.endpoint, environment={})
    script = "import boto3; found = boto3.Session().get_credentials(); print(found.method, found.access_key)"
    environment = ProcessBackend(tmp_path).environment(spec, tmp_path)
    process = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert process.stdout == "iam-role ASIA1\n"


def test_token_request_without_a_ttl_is_rejected(node: Node) -> None:
    with pytest.raises(urllib.error.HTTPError, match="400"):
        node.request("/latest/api/token", "PUT")


def test_pages_have_identity_tags_and_role(node: Node) -> None:
    assert node.page("meta-data/instance-id") == "i-1"
    assert node.page("meta-data/tags/instance/trainyard:role") == "workers"
    assert node.page("meta-data/iam/security-credentials/") == "node"
    assert json.loads(node.page("dynamic/instance-identity/document"))["region"] == "us-east-1"


def test_folder_lists_its_entries(node: Node) -> None:
    assert "placement/" in node.page("meta-data/").splitlines()


def test_lifecycle_state_is_current(node: Node) -> None:
    assert node.page("meta-data/autoscaling/target-lifecycle-state") == "InService"
    node.record["lifecycle_state"] = "Terminated"
    assert node.page("meta-data/autoscaling/target-lifecycle-state") == "Terminated"


def test_credentials_are_cached_until_shortly_before_they_expire(node: Node) -> None:
    for _ in range(2):
        assert json.loads(node.page("meta-data/iam/security-credentials/node"))["AccessKeyId"] == "ASIA1"
    assert node.assumed_roles == ["node"]


def test_unknown_page_returns_404(node: Node) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404"):
        node.page("meta-data/nothing")
