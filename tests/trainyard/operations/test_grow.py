"""Growth of an active run to a manifest with more nodes; a growth that fails restores the run."""

import time
from typing import Any

import pytest

from rehearsal.aws.faults import Deny
from rehearsal.aws.process import EmulatedAws
from tests import clusters
from tests.conftest import REGION
from tests.trainyard.operations.conftest import RecordingDisplay, RunInBackground
from trainyard.models.layout import CURRENT_RUN, MANIFEST, RunLayout
from trainyard.models.run import Control, RunRecord
from trainyard.operations import scaling
from trainyard.operations.cluster import Cluster
from trainyard.operations.errors import LaunchError
from trainyard.operations.launch import Launch

pytestmark = pytest.mark.usefixtures("fast_polls")


class Growing:
    """A run of two nodes in its third attempt, whose manifest changes."""

    def __init__(self) -> None:
        self.cluster = clusters.create_cluster(REGION, train=None, command=("train.py",))
        self.record = self.cluster.create_run_record()
        self.old_nodes = self.cluster.launch_instances(2)
        self.layout = RunLayout(self.record.run)
        for bucket, key in ((self.cluster.data, self.layout.record), (self.cluster.staging, CURRENT_RUN)):
            bucket.write(key, self.record.model_dump_json().encode())
        self.write_control(is_started=True)
        self.display = RecordingDisplay()

    def write_control(self, *, is_started: bool) -> None:
        control = Control(attempt=3, nodes=tuple(self.old_nodes), started=is_started)
        self.cluster.data.write(self.layout.control, control.model_dump_json().encode())

    def change_manifest(self, nodes: int, **job: Any) -> None:
        manifest = self.cluster.manifest
        group = manifest.groups[0].model_copy(update={"nodes": nodes})
        changes = {"groups": (group,), "job": manifest.job.model_copy(update=job)}
        self.cluster.staging.write(MANIFEST, manifest.model_copy(update=changes).model_dump_json().encode())

    def create_launch(self) -> Launch:
        return Launch(Cluster(self.cluster.stack, REGION), self.display)

    def current_run(self) -> RunRecord:
        return RunRecord.model_validate_json(self.cluster.staging.read(CURRENT_RUN))

    def new_nodes(self) -> list[str]:
        return [name for name in self.cluster.members() if name not in self.old_nodes]


@pytest.fixture
def growing(account: EmulatedAws) -> Growing:
    return Growing()


def test_new_nodes_join_the_run(growing: Growing, run_in_background: RunInBackground) -> None:
    growing.change_manifest(4)
    run = growing.record.run
    sizes_before: list[int] = []

    def write_events() -> bool:
        nodes = growing.new_nodes()
        if len(nodes) < 2:
            return False
        if growing.current_run().nodes == 2:
            if not sizes_before:
                for node in nodes:
                    growing.cluster.write_agent_event(run, node, "ready", 0)
                sizes_before.append(growing.current_run().nodes)
            return False
        for node in [*growing.old_nodes, *nodes]:
            growing.cluster.write_agent_event(run, node, "workers_up", 4)
        return True

    run_in_background(write_events)
    result = growing.create_launch().start(update=True)
    assert (result.run, sorted(result.nodes)) == (run, sorted(growing.cluster.members()))
    assert growing.current_run() == growing.record.model_copy(update={"nodes": 4})


def test_growth_rollback_when_capacity_is_short(growing: Growing, account: EmulatedAws) -> None:
    growing.change_manifest(4)
    account.inject(clusters.capacity_limit(account, 1))
    try:
        with pytest.raises(LaunchError, match=r"1 of 2 requested nodes.*: InsufficientInstanceCapacity"):
            growing.create_launch().start(update=True)
    finally:
        account.clear_faults()
    assert sorted(growing.cluster.members()) == sorted(growing.old_nodes)
    assert growing.cluster.describe_group()["DesiredCapacity"] == 2
    assert growing.current_run() == growing.record
    assert f"run {growing.record.run} continues with its 2 nodes and costs 0.25 USD per hour" in growing.display.lines


def test_growth_rollback_when_a_new_node_fails(growing: Growing, run_in_background: RunInBackground) -> None:
    growing.change_manifest(3)

    def write_events() -> bool:
        for node in growing.new_nodes():
            growing.cluster.write_playbook_failure_events(growing.record.run, node, "efa: no such device")
            return True
        return False

    run_in_background(write_events)
    with pytest.raises(LaunchError, match=r"node i-\w+ could not be configured: efa: no such device"):
        growing.create_launch().start(update=True)
    assert sorted(growing.cluster.members()) == sorted(growing.old_nodes)
    assert growing.current_run() == growing.record


def test_growth_rollback_when_the_next_attempt_does_not_start(
    growing: Growing, run_in_background: RunInBackground
) -> None:
    growing.change_manifest(3)
    launch = growing.create_launch()

    def write_events() -> bool:
        for node in growing.new_nodes():
            growing.cluster.write_agent_event(growing.record.run, node, "ready", 0)
            return True
        return False

    run_in_background(write_events)
    launch.deadline.at -= launch.deadline.minutes * 60 - 3
    with pytest.raises(LaunchError, match="waiting for the job's start"):
        launch.start(update=True)
    assert sorted(growing.cluster.members()) == sorted(growing.old_nodes)
    assert growing.current_run() == growing.record


def test_run_that_has_not_started_is_not_grown(growing: Growing) -> None:
    growing.change_manifest(4)
    growing.write_control(is_started=False)
    with pytest.raises(LaunchError, match="is active on the cluster"):
        growing.create_launch().start()
    assert sorted(growing.cluster.members()) == sorted(growing.old_nodes)


def test_unchanged_manifest_launches_nothing(growing: Growing) -> None:
    result = growing.create_launch().start(update=True)
    assert (result.run, sorted(result.nodes)) == (growing.record.run, sorted(growing.old_nodes))
    assert growing.display.lines == [f"run {growing.record.run} matches the manifest: nothing to launch"]


def test_manifest_of_another_job_replaces_the_run(growing: Growing, monkeypatch: pytest.MonkeyPatch) -> None:
    growing.change_manifest(2, name="other")
    growing.cluster.write_head_ready_events()
    launch = growing.create_launch()

    def fail(counts: dict[str, int]) -> list[str]:
        assert growing.cluster.members() == []
        raise LaunchError("stopped by the test")

    monkeypatch.setattr(launch, "add_nodes", fail)
    with pytest.raises(LaunchError, match="stopped by the test"):
        launch.start(update=True)
    outcome = Cluster(growing.cluster.stack, REGION).outcome(growing.record.run)
    assert outcome is not None
    assert outcome.state == "stopped"
    assert growing.current_run().run != growing.record.run


def test_growth_puts_a_lease_on_the_groups(growing: Growing, monkeypatch: pytest.MonkeyPatch) -> None:
    growing.change_manifest(4)
    launch = growing.create_launch()
    leases: list[float | None] = []

    def fail(counts: dict[str, int]) -> list[str]:
        leases.append(growing.cluster.lease_end())
        raise LaunchError("stopped by the test")

    monkeypatch.setattr(launch, "add_nodes", fail)
    with pytest.raises(LaunchError, match="stopped by the test"):
        launch.start(update=True)
    assert leases[0] == pytest.approx(time.time() + 20 * 60, abs=20)


def test_nodes_of_a_killed_growth_are_terminated_first(growing: Growing, monkeypatch: pytest.MonkeyPatch) -> None:
    leftover = growing.cluster.launch_instances(2)
    growing.change_manifest(4)
    launch = growing.create_launch()

    def fail(counts: dict[str, int]) -> list[str]:
        assert sorted(growing.cluster.members()) == sorted(growing.old_nodes)
        assert counts == {"workers": 2}
        raise LaunchError("stopped by the test")

    monkeypatch.setattr(launch, "add_nodes", fail)
    with pytest.raises(LaunchError, match="stopped by the test"):
        launch.start(update=True)
    assert any(
        "terminated nodes of an earlier launch" in line and leftover[0] in line for line in growing.display.lines
    )


def test_run_that_has_lost_a_node_is_not_grown(growing: Growing) -> None:
    lost, _ = growing.old_nodes
    growing.cluster.autoscaling.terminate_instance_in_auto_scaling_group(
        InstanceId=lost, ShouldDecrementDesiredCapacity=True
    )
    growing.change_manifest(4)
    with pytest.raises(LaunchError, match=f"has lost {lost} and waits for replacements"):
        growing.create_launch().start(update=True)


def test_nodes_that_could_not_be_terminated_are_named(
    growing: Growing, account: EmulatedAws, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scaling, "RETRY_DELAY_SECONDS", 0.0)
    growing.change_manifest(4)
    account.inject(clusters.capacity_limit(account, 1))
    account.inject(Deny(operation="autoscaling:TerminateInstanceInAutoScalingGroup"))
    account.inject(Deny(operation="ec2:TerminateInstances"))
    try:
        with pytest.raises(
            LaunchError, match=r"AWS did not terminate nodes that cost 0.00 USD per hour: i-\w+ .*--instance-id ID"
        ):
            growing.create_launch().start(update=True)
    finally:
        account.clear_faults()
    assert not any("rolled back" in line for line in growing.display.lines)


def test_longer_time_limit_does_not_stop_the_run(growing: Growing) -> None:
    manifest = growing.cluster.manifest
    limits = manifest.limits.model_copy(update={"time_limit_minutes": 120.0})
    changed = manifest.model_copy(update={"limits": limits})
    growing.cluster.staging.write(MANIFEST, changed.model_dump_json().encode())
    result = growing.create_launch().start(update=True)
    assert result.run == growing.record.run
    assert growing.current_run().deadline == pytest.approx(growing.record.created + 120 * 60)
    assert sorted(growing.cluster.members()) == sorted(growing.old_nodes)
