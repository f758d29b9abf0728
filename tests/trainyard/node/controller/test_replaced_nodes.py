"""The history of replaced nodes."""

import pytest

from rehearsal.aws.process import EmulatedAws
from tests.clusters import create_cluster
from tests.conftest import REGION
from tests.trainyard.node.controller.runs import Run
from trainyard.models.layout import REPLACED_NODES
from trainyard.models.replaced_nodes import MAXIMUM_NODES, SUSPECT_SECONDS, ReplacedNode, ReplacedNodes
from trainyard.node.controller.account import Account
from trainyard.node.controller.replaced_nodes import RETRY_SECONDS, ReplacementHistory
from trainyard.node.controller.topology import Topology

NETWORK_NODES = {"i-1": ("nn-a", "nn-1"), "i-2": ("nn-a", "nn-1"), "i-3": ("nn-a", "nn-2"), "i-4": ("nn-a", "nn-1")}


@pytest.fixture
def run(account: EmulatedAws) -> Run:
    run = Run(create_cluster(REGION))
    run.cluster.data.delete(REPLACED_NODES)
    return run


@pytest.fixture
def history(run: Run, monkeypatch: pytest.MonkeyPatch) -> ReplacementHistory:
    account = Account(REGION)
    monkeypatch.setattr(account, "describe_network_nodes", lambda nodes: {node: NETWORK_NODES[node] for node in nodes})
    return ReplacementHistory(run.controller.state, Topology(account))


def test_replaced_nodes_are_stored_with_their_place_in_the_network(run: Run, history: ReplacementHistory) -> None:
    history.add("i-1", "GPU 3: Xid 79")
    content = run.cluster.data.read(REPLACED_NODES)
    (node,) = ReplacedNodes.model_validate_json(content).nodes
    assert (node.instance, node.run, node.reason, node.network_node) == ("i-1", run.record.run, "GPU 3: Xid 79", "nn-1")


def test_nodes_near_several_replaced_nodes_are_suspect_also_in_a_later_run(
    run: Run, history: ReplacementHistory
) -> None:
    history.add("i-1", "lost")
    assert history.find_unsuspected(["i-3", "i-4"]) == {"i-3", "i-4"}
    history.add("i-2", "lost")
    assert history.find_unsuspected(["i-3", "i-4"]) == {"i-3"}
    later = ReplacementHistory(run.controller.state, history._topology)
    assert later.find_unsuspected(["i-3", "i-4"]) == {"i-3"}
    run.clock.advance(SUSPECT_SECONDS + 1)
    assert later.find_unsuspected(["i-3", "i-4"]) == {"i-3", "i-4"}


def test_history_that_cannot_be_read_suspects_no_node(
    run: Run, history: ReplacementHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.cluster.data.write(REPLACED_NODES, replaced("i-1", "i-2").model_dump_json().encode())
    name = run.controller.state.data.name
    monkeypatch.setattr(run.controller.state.data, "name", "missing-bucket")
    assert history.find_unsuspected(["i-4"]) == {"i-4"}
    monkeypatch.setattr(run.controller.state.data, "name", name)
    run.clock.advance(RETRY_SECONDS + 1)
    assert history.find_unsuspected(["i-4"]) == frozenset()


def test_node_that_is_replaced_while_the_history_cannot_be_read_is_added_later(
    run: Run, history: ReplacementHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.cluster.data.write(REPLACED_NODES, replaced("i-2").model_dump_json().encode())
    name = run.controller.state.data.name
    monkeypatch.setattr(run.controller.state.data, "name", "missing-bucket")
    history.add("i-1", "lost")
    monkeypatch.setattr(run.controller.state.data, "name", name)
    run.clock.advance(RETRY_SECONDS + 1)
    history.add("i-3", "lost")
    stored = ReplacedNodes.model_validate_json(run.cluster.data.read(REPLACED_NODES))
    assert [node.instance for node in stored.nodes] == ["i-2", "i-1", "i-3"]


def test_history_has_a_limited_size() -> None:
    nodes = replaced(*(f"i-{number}" for number in range(MAXIMUM_NODES + 1)))
    assert (len(nodes.nodes), nodes.nodes[0].instance) == (MAXIMUM_NODES, "i-1")


def replaced(*instances: str) -> ReplacedNodes:
    nodes = ReplacedNodes()
    for instance in instances:
        node = ReplacedNode(instance=instance, run="r", time=2e9, reason="lost", network_node="nn-1")
        nodes = nodes.add(node)
    return nodes
