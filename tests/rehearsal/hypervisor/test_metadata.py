"""The metadata service as an instance sees it."""

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rehearsal.hypervisor.metadata import Metadata, MetadataServer
from tests.trainyard.node.test_bootstrap import TRUTH


class Node:
    """A server, what it knows, and how often it asked for credentials."""

    def __init__(self) -> None:
        self.truth: dict[str, Any] = {**TRUTH, "tags": {"trainyard:role": "workers"}, "autoscaling_group": "g"}
        self.assumed: list[str] = []
        self.server = MetadataServer(Metadata(lambda: self.truth, self.assume), socket.create_server(("127.0.0.1", 0)))

    def assume(self, role: str) -> dict[str, str]:
        self.assumed.append(role)
        expires = datetime.now(UTC) + timedelta(hours=1)
        stamp = expires.strftime("%Y-%m-%dT%H:%M:%SZ")
        return {"AccessKeyId": "ASIA1", "SecretAccessKey": "s", "Token": "t", "Expiration": stamp}

    def ask(self, path: str, method: str = "GET", **headers: str) -> str:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(self.server.endpoint + path, method=method, headers=named)
        with urllib.request.urlopen(request, timeout=5) as answer:
            text: str = answer.read().decode()
            return text

    def page(self, path: str) -> str:
        token = self.ask("/latest/api/token", "PUT", X_aws_ec2_metadata_token_ttl_seconds="60")
        return self.ask(f"/latest/{path}", X_aws_ec2_metadata_token=token)


@pytest.fixture
def node() -> Iterator[Node]:
    made = Node()
    yield made
    made.server.close()


def test_no_page_without_a_token(node: Node) -> None:
    with pytest.raises(urllib.error.HTTPError, match="401"):
        node.ask("/latest/meta-data/instance-id")


def test_a_token_needs_a_lifetime(node: Node) -> None:
    with pytest.raises(urllib.error.HTTPError, match="400"):
        node.ask("/latest/api/token", "PUT")


def test_identity_tags_and_role(node: Node) -> None:
    assert node.page("meta-data/instance-id") == "i-1"
    assert node.page("meta-data/tags/instance/trainyard:role") == "workers"
    assert node.page("meta-data/iam/security-credentials/") == "node"
    assert json.loads(node.page("dynamic/instance-identity/document"))["region"] == "us-east-1"


def test_a_folder_lists_what_is_in_it(node: Node) -> None:
    assert "placement/" in node.page("meta-data/").splitlines()


def test_the_life_cycle_state_is_the_present_one(node: Node) -> None:
    assert node.page("meta-data/autoscaling/target-lifecycle-state") == "InService"
    node.truth["lifecycle_state"] = "Terminated"
    assert node.page("meta-data/autoscaling/target-lifecycle-state") == "Terminated"


def test_credentials_are_kept_until_they_near_their_end(node: Node) -> None:
    for _ in range(2):
        assert json.loads(node.page("meta-data/iam/security-credentials/node"))["AccessKeyId"] == "ASIA1"
    assert node.assumed == ["node"]


def test_an_unknown_page_is_404(node: Node) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404"):
        node.page("meta-data/nothing")
