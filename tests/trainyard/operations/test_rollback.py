"""The rollback of a launch: it terminates what the launch added, and no node of a live run."""

from typing import Any, NoReturn

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from rehearsal.aws.process import EmulatedAws
from tests import clusters
from tests.conftest import REGION
from tests.polling import eventually
from tests.trainyard.operations.conftest import RecordingDisplay
from trainyard.aws import autoscaling
from trainyard.models.layout import CURRENT_RUN
from trainyard.operations import scaling_activities
from trainyard.operations.cluster import Cluster
from trainyard.operations.errors import LaunchError
from trainyard.operations.launch import Launch
from trainyard.operations.startup import NodeStartup
from trainyard.operations.worker_groups import WorkerGroups


@pytest.fixture
def cluster(account: EmulatedAws, monkeypatch: pytest.MonkeyPatch) -> clusters.Cluster:
    monkeypatch.setattr(scaling_activities, "RETRY_DELAY_SECONDS", 0.05)
    return clusters.create_cluster(REGION)


@pytest.fixture
def display() -> RecordingDisplay:
    return RecordingDisplay()


def add_nodes(cluster: clusters.Cluster, display: RecordingDisplay, count: int) -> tuple[WorkerGroups, list[str]]:
    """Add nodes as a new launch does; return its view of the groups, and the nodes."""
    workers = WorkerGroups(cluster.manifest)
    return workers, workers.add_nodes({"workers": count}, f"run-{count}", display)


def replace_node(cluster: clusters.Cluster, node: str) -> str:
    """Report a node as unhealthy; return the instance with which Auto Scaling replaces it."""
    known = set(cluster.members())
    autoscaling.set_unhealthy(REGION, node)

    eventually(lambda: bool(set(cluster.members()) - known), "the replacement of a node")
    (name,) = set(cluster.members()) - known
    return name


def test_replacement_of_a_node_of_the_run_is_kept(cluster: clusters.Cluster, display: RecordingDisplay) -> None:
    _, (failed, healthy) = add_nodes(cluster, display, 2)
    scaling_out, (added,) = add_nodes(cluster, display, 1)
    replacement = replace_node(cluster, failed)
    assert scaling_out.rollback(display) == []
    assert f"nodes rolled back, terminated: {added}" in display.lines
    assert set(cluster.members()) == {healthy, replacement}
    assert cluster.describe_group()["DesiredCapacity"] == 2


def test_superseded_launch_terminates_its_own_nodes_only(cluster: clusters.Cluster, display: RecordingDisplay) -> None:
    superseded, own = add_nodes(cluster, display, 1)
    _, later = add_nodes(cluster, display, 2)
    assert superseded.rollback(display, superseded=True) == []
    assert f"nodes rolled back, terminated: {own[0]}" in display.lines
    assert sorted(cluster.members()) == sorted(later)


def test_launch_is_superseded_by_a_later_run(
    cluster: clusters.Cluster, display: RecordingDisplay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example a launch on a computer that was asleep while another launch started a run."""
    cluster.write_head_ready_events()
    launch = Launch(Cluster(cluster.stack, REGION), display)
    later: list[str] = []

    def start_another_run(*_: object) -> NoReturn:
        record = cluster.create_run_record()
        cluster.staging.write(CURRENT_RUN, record.model_dump_json().encode())
        later.extend(WorkerGroups(cluster.manifest).add_nodes({"workers": 1}, record.run, display))
        raise LaunchError("the computer was asleep")

    monkeypatch.setattr(NodeStartup, "wait_for_job", start_another_run)
    with pytest.raises(LaunchError, match="asleep"):
        launch.start()
    assert cluster.members() == later


def test_rollback_continues_when_a_request_fails(
    cluster: clusters.Cluster, display: RecordingDisplay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TerminateInstanceInAutoScalingGroup is refused once, and the description that follows is throttled."""
    workers, _ = add_nodes(cluster, display, 2)
    refusals = {"terminate_instance": ["ScalingActivityInProgress"], "describe_groups": ["", "", "Throttling"]}

    def refuse(name: str) -> None:
        real = getattr(autoscaling, name)

        def call(*arguments: Any) -> Any:
            if refusals[name] and (code := refusals[name].pop(0)):
                raise ClientError({"Error": {"Code": code, "Message": code}}, name)
            return real(*arguments)

        monkeypatch.setattr(autoscaling, name, call)

    refuse("terminate_instance")
    refuse("describe_groups")
    assert workers.rollback(display) == []
    assert refusals == {"terminate_instance": [], "describe_groups": []}
    assert cluster.members() == []


def test_lost_connection_names_the_nodes_and_how_to_end_them(
    cluster: clusters.Cluster, display: RecordingDisplay, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.write_head_ready_events()
    launch = Launch(Cluster(cluster.stack, REGION), display)

    def lose(*_: object) -> NoReturn:
        raise EndpointConnectionError(endpoint_url="https://autoscaling.us-east-1.amazonaws.com")

    def lose_connection(*_: object) -> NoReturn:
        for name in ("describe_groups", "terminate_instance"):
            monkeypatch.setattr(autoscaling, name, lose)
        monkeypatch.setattr(launch, "_record_failure", lose)
        lose()

    monkeypatch.setattr(NodeStartup, "wait_for_job", lose_connection)
    with pytest.raises(LaunchError) as caught:
        launch.start()
    message = str(caught.value)
    assert all(name in message for name in launch.workers.launched_nodes())
    assert f"To terminate them now: trainyard stop -s {cluster.stack}" in message
