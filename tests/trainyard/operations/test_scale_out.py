"""Scale-out of an active run to a manifest with more nodes; a scale-out that fails restores the run."""

import time
from typing import Any

import pytest

from rehearsal.aws.faults import Deny
from rehearsal.aws.process import EmulatedAws
from tests import clusters
from tests.conftest import REGION
from tests.trainyard.operations.conftest import RecordingDisplay, RunInBackground
from trainyard.models.layout import COMMIT_MARK, CURRENT_RUN, MANIFEST, RunLayout
from trainyard.models.run import Control, RunRecord, launch_trigger
from trainyard.operations import scaling_activities
from trainyard.operations.cluster import Cluster
from trainyard.operations.errors import LaunchError
from trainyard.operations.launch import Launch, LaunchOptions

pytestmark = pytest.mark.usefixtures("fast_polls")


class ActiveRun:
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

    def create_launch(self, **options: Any) -> Launch:
        return Launch(Cluster(self.cluster.stack, REGION), self.display, LaunchOptions(**options))

    def current_run(self) -> RunRecord:
        return RunRecord.model_validate_json(self.cluster.staging.read(CURRENT_RUN))

    def new_nodes(self) -> list[str]:
        return [name for name in self.cluster.members() if name not in self.old_nodes]


@pytest.fixture
def active(account: EmulatedAws) -> ActiveRun:
    return ActiveRun()


def test_new_nodes_join_the_run(active: ActiveRun, run_in_background: RunInBackground) -> None:
    active.change_manifest(4)
    run = active.record.run
    sizes_before: list[int] = []

    def write_events() -> bool:
        nodes = active.new_nodes()
        if len(nodes) < 2:
            return False
        if active.current_run().nodes == 2:
            if not sizes_before:
                for node in nodes:
                    active.cluster.write_agent_event(run, node, "ready", 0)
                sizes_before.append(active.current_run().nodes)
            return False
        for node in [*active.old_nodes, *nodes]:
            active.cluster.write_agent_event(run, node, "workers_up", 4)
        return True

    run_in_background(write_events)
    result = active.create_launch().start(update=True)
    assert (result.run, sorted(result.nodes)) == (run, sorted(active.cluster.members()))
    assert active.current_run() == active.record.model_copy(update={"nodes": 4})


def test_scale_out_rollback_when_capacity_is_short(active: ActiveRun, account: EmulatedAws) -> None:
    active.change_manifest(4)
    account.inject(clusters.capacity_limit(account, 1))
    try:
        with pytest.raises(LaunchError, match=r"1 of 2 requested nodes.*: InsufficientInstanceCapacity"):
            active.create_launch().start(update=True)
    finally:
        account.clear_faults()
    assert sorted(active.cluster.members()) == sorted(active.old_nodes)
    assert active.cluster.describe_group()["DesiredCapacity"] == 2
    assert active.current_run() == active.record
    assert f"run {active.record.run} continues with its 2 nodes and costs 0.25 USD per hour" in active.display.lines


def test_scale_out_rollback_when_a_new_node_fails(active: ActiveRun, run_in_background: RunInBackground) -> None:
    active.change_manifest(3)

    def write_events() -> bool:
        for node in active.new_nodes():
            active.cluster.write_playbook_failure_events(active.record.run, node, "efa: no such device")
            return True
        return False

    run_in_background(write_events)
    with pytest.raises(LaunchError, match=r"node i-\w+ could not be configured: efa: no such device"):
        active.create_launch().start(update=True)
    assert sorted(active.cluster.members()) == sorted(active.old_nodes)
    assert active.current_run() == active.record


def test_scale_out_rollback_when_the_next_attempt_does_not_start(
    active: ActiveRun, run_in_background: RunInBackground
) -> None:
    active.change_manifest(3)
    launch = active.create_launch()

    def write_events() -> bool:
        for node in active.new_nodes():
            active.cluster.write_agent_event(active.record.run, node, "ready", 0)
            return True
        return False

    run_in_background(write_events)
    launch.deadline.at -= launch.deadline.minutes * 60 - 3
    with pytest.raises(LaunchError, match="waiting for the job's start"):
        launch.start(update=True)
    assert sorted(active.cluster.members()) == sorted(active.old_nodes)
    assert active.current_run() == active.record


def test_run_that_has_not_started_is_not_scaled_out(active: ActiveRun) -> None:
    active.change_manifest(4)
    active.write_control(is_started=False)
    with pytest.raises(LaunchError, match="is active, and this launch would stop it"):
        active.create_launch().start()
    assert sorted(active.cluster.members()) == sorted(active.old_nodes)


def test_unchanged_manifest_launches_nothing(active: ActiveRun) -> None:
    result = active.create_launch().start(update=True)
    assert (result.run, sorted(result.nodes)) == (active.record.run, sorted(active.old_nodes))
    assert active.display.lines == [f"run {active.record.run} matches the manifest: nothing to launch"]


def test_manifest_of_another_job_does_not_stop_an_active_run(active: ActiveRun) -> None:
    active.change_manifest(2, name="other")
    with pytest.raises(LaunchError, match=r"would stop it\. Wait .*\.launch\.replace_running: true"):
        active.create_launch().start(update=True)
    assert Cluster(active.cluster.stack, REGION).outcome(active.record.run) is None


def test_active_run_with_the_same_manifest_is_the_result_of_a_first_launch(active: ActiveRun) -> None:
    """The state of Pulumi does not contain it when the process of its launch was killed."""
    assert active.create_launch().start().run == active.record.run


@pytest.mark.parametrize("file", [COMMIT_MARK, "model.safetensors"])
@pytest.mark.parametrize(("resume_replaced", "expected"), [(True, True), (False, False)])
def test_run_that_replaces_another_starts_from_its_newest_checkpoint(
    active: ActiveRun, monkeypatch: pytest.MonkeyPatch, resume_replaced: bool, expected: bool, file: str
) -> None:
    active.change_manifest(2, name="other")
    active.cluster.write_head_ready_events()
    checkpoint = f"{RunLayout(active.record.run).checkpoints}step-00000010/{file}"
    active.cluster.data.write(checkpoint, b"")
    launch = active.create_launch(trigger="earlier", again="2", replace_running=True, resume_replaced=resume_replaced)

    def fail(counts: dict[str, int]) -> list[str]:
        raise LaunchError("stopped by the test")

    monkeypatch.setattr(launch, "add_nodes", fail)
    with pytest.raises(LaunchError, match="stopped by the test"):
        launch.start(update=True)
    new = active.current_run()
    assert new.job.resume == (active.record.run if expected else None)
    assert (new.trigger, new.again) == ("earlier", "2")
    outcome = Cluster(active.cluster.stack, REGION).outcome(new.run)
    assert launch_trigger(new, outcome) == new.run  # Pulumi has no result of this launch


def test_manifest_of_another_job_replaces_the_run(active: ActiveRun, monkeypatch: pytest.MonkeyPatch) -> None:
    active.change_manifest(2, name="other")
    active.cluster.write_head_ready_events()
    launch = active.create_launch(replace_running=True)

    def fail(counts: dict[str, int]) -> list[str]:
        assert active.cluster.members() == []
        raise LaunchError("stopped by the test")

    monkeypatch.setattr(launch, "add_nodes", fail)
    with pytest.raises(LaunchError, match="stopped by the test"):
        launch.start(update=True)
    outcome = Cluster(active.cluster.stack, REGION).outcome(active.record.run)
    assert outcome is not None
    assert outcome.state == "stopped"
    assert active.current_run().run != active.record.run


def test_scale_out_puts_a_lease_on_the_groups(active: ActiveRun, monkeypatch: pytest.MonkeyPatch) -> None:
    active.change_manifest(4)
    launch = active.create_launch()
    leases: list[float | None] = []

    def fail(counts: dict[str, int]) -> list[str]:
        leases.append(active.cluster.lease_end())
        raise LaunchError("stopped by the test")

    monkeypatch.setattr(launch, "add_nodes", fail)
    with pytest.raises(LaunchError, match="stopped by the test"):
        launch.start(update=True)
    assert leases[0] == pytest.approx(time.time() + 20 * 60, abs=20)


def test_nodes_of_a_killed_scale_out_are_terminated_first(active: ActiveRun, monkeypatch: pytest.MonkeyPatch) -> None:
    leftover = active.cluster.launch_instances(2)
    active.change_manifest(4)
    launch = active.create_launch()

    def fail(counts: dict[str, int]) -> list[str]:
        assert sorted(active.cluster.members()) == sorted(active.old_nodes)
        assert counts == {"workers": 2}
        raise LaunchError("stopped by the test")

    monkeypatch.setattr(launch, "add_nodes", fail)
    with pytest.raises(LaunchError, match="stopped by the test"):
        launch.start(update=True)
    assert any("terminated nodes of an earlier launch" in line and leftover[0] in line for line in active.display.lines)


def test_run_that_has_lost_a_node_is_not_scaled_out(active: ActiveRun) -> None:
    lost, _ = active.old_nodes
    active.cluster.autoscaling.terminate_instance_in_auto_scaling_group(
        InstanceId=lost, ShouldDecrementDesiredCapacity=True
    )
    active.change_manifest(4)
    with pytest.raises(LaunchError, match=f"has lost {lost} and waits for replacements"):
        active.create_launch().start(update=True)


def test_nodes_that_could_not_be_terminated_are_named(
    active: ActiveRun, account: EmulatedAws, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scaling_activities, "RETRY_DELAY_SECONDS", 0.0)
    active.change_manifest(4)
    account.inject(clusters.capacity_limit(account, 1))
    account.inject(Deny(operation="autoscaling:TerminateInstanceInAutoScalingGroup"))
    account.inject(Deny(operation="ec2:TerminateInstances"))
    try:
        with pytest.raises(
            LaunchError, match=r"AWS did not terminate nodes that cost 0.00 USD per hour: i-\w+ .*--instance-id ID"
        ):
            active.create_launch().start(update=True)
    finally:
        account.clear_faults()
    assert not any("rolled back" in line for line in active.display.lines)


def test_longer_time_limit_does_not_stop_the_run(active: ActiveRun) -> None:
    manifest = active.cluster.manifest
    limits = manifest.limits.model_copy(update={"time_limit_minutes": 120.0})
    changed = manifest.model_copy(update={"limits": limits})
    active.cluster.staging.write(MANIFEST, changed.model_dump_json().encode())
    result = active.create_launch().start(update=True)
    assert result.run == active.record.run
    assert active.current_run().deadline == pytest.approx(active.record.created + 120 * 60)
    assert sorted(active.cluster.members()) == sorted(active.old_nodes)
