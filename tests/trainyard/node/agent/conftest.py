"""Fixtures of a node with its agent."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rehearsal.aws.process import EmulatedAws
from tests.trainyard.node.agent.nodes import HealthCheckNode, NodeWithAgent


@pytest.fixture
def node(
    account: EmulatedAws, systemd: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[NodeWithAgent]:
    node_under_test = NodeWithAgent(tmp_path, monkeypatch)
    yield node_under_test
    attempt = node_under_test.agent._attempt
    node_under_test.close()
    if attempt is not None:
        attempt.kill()


@pytest.fixture
def health_check_node(node: NodeWithAgent, monkeypatch: pytest.MonkeyPatch) -> HealthCheckNode:
    return HealthCheckNode(node, monkeypatch)
