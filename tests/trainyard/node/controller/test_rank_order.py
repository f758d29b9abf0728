"""The order of nodes by the network topology, and the orders of the controller in it."""

from collections.abc import Sequence
from itertools import groupby

import pytest

from rehearsal.aws.faults import Deny, Outage
from rehearsal.aws.process import EmulatedAws
from tests.clusters import Cluster, create_cluster, ubuntu_image_id
from tests.conftest import REGION
from tests.trainyard.node.controller.runs import Run
from trainyard.aws.clients import client
from trainyard.aws.topology import describe_network_nodes
from trainyard.node.controller.account import Account
from trainyard.node.controller.rank_order import order_by_topology, order_nodes
from trainyard.node.controller.topology import Topology

# Two groups below t1 (of 1 and 2 nodes), one below t2 (of 4 nodes).
NETWORK = {
    "i-a1": ("t1", "m1", "b1"),
    "i-b1": ("t1", "m2", "b2"),
    "i-b2": ("t1", "m2", "b2"),
    "i-c1": ("t2", "m3", "b3"),
    "i-c2": ("t2", "m3", "b3"),
    "i-c3": ("t2", "m3", "b3"),
    "i-c4": ("t2", "m3", "b3"),
}
ORDER = ("i-c1", "i-c2", "i-c3", "i-c4", "i-b1", "i-b2", "i-a1")


def test_groups_have_consecutive_ranks_and_the_largest_is_first() -> None:
    mixed = ("i-a1", "i-c1", "i-b1", "i-c2", "i-b2", "i-c3", "i-c4")
    assert order_by_topology(mixed, NETWORK) == ORDER


def test_layers_are_ordered_from_top_to_bottom() -> None:
    """The middle layer counts before the bottom layer: i-2 is closer to i-1 than i-3 is."""
    network = {"i-1": ("t", "m1", "b1"), "i-3": ("t", "m2", "b2"), "i-2": ("t", "m1", "b3"), "i-4": ("t", "m2", "b2")}
    assert order_by_topology(("i-1", "i-3", "i-2", "i-4"), network) == ("i-1", "i-2", "i-3", "i-4")


def test_nodes_of_different_depth_are_ordered_by_their_common_layers() -> None:
    network = {"i-1": ("t", "m", "b", "x"), "i-2": ("u", "m", "b"), "i-3": ("t", "m", "b")}
    assert order_by_topology(("i-1", "i-2", "i-3"), network) == ("i-1", "i-3", "i-2")


def test_nodes_without_topology_are_last_in_their_order() -> None:
    nodes = ("i-z", "i-b1", "i-y", "i-b2")
    assert order_by_topology(nodes, {**NETWORK, "i-y": ()}) == ("i-b1", "i-b2", "i-z", "i-y")


def test_replacement_in_the_same_group_changes_no_other_order() -> None:
    """The group with rank 0 stays first, although it is the smaller one now."""
    previous = ("i-b1", "i-b2", "i-a1", "i-c1")
    nodes = ("i-a1", "i-b2", "i-c1", "i-c2", "i-c3")
    assert order_by_topology(nodes, NETWORK, previous) == ("i-b2", "i-a1", "i-c1", "i-c2", "i-c3")


def test_new_node_joins_its_group() -> None:
    assert order_by_topology(("i-c4", "i-b1", "i-b2", "i-c1"), NETWORK, ("i-c1", "i-b1", "i-b2")) == (
        "i-c1",
        "i-c4",
        "i-b1",
        "i-b2",
    )


def test_same_nodes_keep_their_order() -> None:
    previous = tuple(reversed(ORDER))
    assert order_by_topology(sorted(NETWORK), NETWORK, previous) == previous


def create_gpu_cluster() -> Cluster:
    """A cluster of p4d.24xlarge, whose topology EC2 describes."""
    cluster = create_cluster(REGION)
    data = {"ImageId": ubuntu_image_id(REGION), "InstanceType": "p4d.24xlarge"}
    client("ec2", REGION).create_launch_template_version(LaunchTemplateName=cluster.stack, LaunchTemplateData=data)
    template = {"LaunchTemplateName": cluster.stack, "Version": "2"}
    cluster.autoscaling.update_auto_scaling_group(
        AutoScalingGroupName=cluster.group, MaxSize=16, LaunchTemplate=template
    )
    return cluster


class TopologyRun(Run):
    """A run of twelve p4d.24xlarge."""

    def __init__(self) -> None:
        super().__init__(create_gpu_cluster())
        self.nodes += self.cluster.launch_instances(10)
        self.record = self.record.model_copy(update={"nodes": 12})
        self.start_controller()

    def write_ready_events(self) -> None:
        for number, node in enumerate(sorted(self.nodes)):
            self.cluster.write_agent_event(self.record.run, node, "ready", 0, address=f"127.77.8.{number}")

    def address(self, node: str) -> str:
        return self.controller.state.node_states.latest[node].address


@pytest.fixture
def run(account: EmulatedAws) -> TopologyRun:
    run = TopologyRun()
    run.write_ready_events()
    return run


def test_attempt_has_neighbours_below_the_same_network_nodes(run: TopologyRun) -> None:
    run.controller.step()
    network = describe_network_nodes(REGION, run.nodes)
    assert set(run.published.nodes) == set(run.nodes)
    for layer in range(3):
        groups = [group for group, _ in groupby(run.published.nodes, key=lambda node: network[node][layer])]
        assert len(groups) == len(set(groups))
    assert len({network[node] for node in run.nodes}) < 12  # some nodes share the lowest network node


def test_master_is_the_first_node(run: TopologyRun) -> None:
    run.controller.step()
    assert run.published.master is not None
    assert run.published.master.address == run.address(run.published.nodes[0])


def test_lost_master_is_replaced_by_the_next_node(run: TopologyRun) -> None:
    run.controller.step()
    first, lost = run.published, run.published.nodes[0]
    run.cluster.autoscaling.terminate_instance_in_auto_scaling_group(
        InstanceId=lost, ShouldDecrementDesiredCapacity=True
    )
    run.step_until_loss()
    run.controller.state.run = run.record.model_copy(update={"nodes": 11})
    run.step_with_members()
    second = run.published
    assert (second.attempt, second.nodes) == (2, first.nodes[1:])
    assert first.master is not None
    assert second.master is not None
    assert second.master.address == run.address(first.nodes[1])
    assert second.master.port != first.master.port


def test_health_check_and_attempt_have_the_same_order(run: TopologyRun) -> None:
    limits = run.record.limits.model_copy(update={"health_check_timeout_minutes": 3.0})
    run.controller.state.run = run.record.model_copy(update={"limits": limits})
    run.controller.step()
    order = run.published.health_check
    assert order is not None
    assert order.master.address == run.address(order.nodes[0])
    for node in run.nodes:
        run.cluster.write_health_check_event(run.record.run, node, order.number)
    run.controller.step()
    assert (run.published.attempt, run.published.nodes) == (1, order.nodes)


def test_restarted_controller_keeps_the_order(run: TopologyRun) -> None:
    run.controller.step()
    before = run.published.nodes
    run.start_controller()
    run.step("workers_failed", 1)
    run.controller.step()
    assert (run.published.attempt, run.published.nodes) == (2, before)


@pytest.mark.parametrize(
    "fault",
    [
        Deny(operation="ec2:DescribeInstanceTopology"),
        Outage(operation="ec2:DescribeInstanceTopology", times=100),
    ],
    ids=["denied", "outage"],
)
def test_attempt_starts_without_topology(run: TopologyRun, account: EmulatedAws, fault: Deny | Outage) -> None:
    account.inject(fault)
    try:
        run.controller.step()
    finally:
        account.clear_faults()
    assert (run.published.attempt, run.published.nodes) == (1, tuple(sorted(run.nodes)))


def test_topology_of_a_node_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Sequence[str]] = []

    def describe(instances: Sequence[str]) -> dict[str, tuple[str, ...]]:
        calls.append(instances)
        return {node: NETWORK[node] for node in instances if node in NETWORK}

    account = Account(REGION)
    monkeypatch.setattr(account, "describe_network_nodes", describe)
    topology = Topology(account)
    order_nodes(("i-a1", "i-x"), topology, ())
    order_nodes(("i-a1", "i-x", "i-b1"), topology, ())
    assert calls == [["i-a1", "i-x"], ["i-x", "i-b1"]]  # AWS did not describe i-x, which may not have run yet
