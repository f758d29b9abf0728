"""A new run on the nodes of an earlier run: which nodes it uses, what it launches, and what a failure leaves."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from rehearsal.aws.process import EmulatedAws
from tests import clusters
from tests.conftest import REGION
from tests.ecr import REGISTRY, push_image
from tests.polling import eventually
from tests.trainyard.operations.conftest import RecordingDisplay, RunInBackground
from trainyard.aws.clients import client
from trainyard.aws.s3 import Bucket
from trainyard.models.events import RankFailure
from trainyard.models.layout import CURRENT_RUN, MANIFEST, RunLayout
from trainyard.models.manifest import Manifest
from trainyard.models.run import Control, Outcome, RunRecord, launch_trigger
from trainyard.operations import kept_nodes
from trainyard.operations import launch as launch_module
from trainyard.operations.cluster import Cluster
from trainyard.operations.errors import LaunchError
from trainyard.operations.launch import Launch, LaunchOptions
from trainyard.operations.run_record import create_run_record
from trainyard.operations.status import format_status, read_status
from trainyard.operations.stop import stop_run

pytestmark = pytest.mark.usefixtures("fast_polls")
FAILURE = RankFailure(rank=1, local_rank=1, time=1.0, exitcode=1, message="NameError: x", traceback="Traceback")


class EarlierRun:
    """A run of two healthy nodes. It is active until `end` is called."""

    def __init__(self, start: RunInBackground) -> None:
        self.cluster = clusters.create_cluster(REGION, train=None, command=("train.py",))
        self.nodes = self.cluster.launch_instances(2)
        eventually(lambda: self.lifecycle_states() == {"InService"}, "nodes in service")
        self.record = create_run_record(self.cluster.manifest, time.time())
        self.layout, self._start = RunLayout(self.record.run), start
        for bucket, key in ((self.cluster.data, self.layout.record), (self.cluster.staging, CURRENT_RUN)):
            bucket.write(key, self.record.model_dump_json().encode())
        control = Control(attempt=1, nodes=tuple(self.nodes), started=True, healthy_nodes=tuple(self.nodes))
        self.write_control(control)
        self.cluster.write_head_ready_events()

    def lifecycle_states(self) -> set[str]:
        return {instance["LifecycleState"] for instance in self.cluster.describe_group()["Instances"]}

    def write_control(self, control: Control) -> None:
        self.cluster.data.write(self.layout.control, control.model_dump_json().encode())

    def end(self, minutes: float = 10.0, **fields: Any) -> None:
        """End the run; its nodes are kept for so many minutes."""
        outcome = Outcome(
            state="succeeded",
            reason="done",
            attempts=1,
            ended_at=time.time(),
            nodes_kept_until=time.time() + minutes * 60 if minutes else None,
        )
        self.write_outcome(outcome.model_copy(update=fields))

    def write_outcome(self, outcome: Outcome, run: str | None = None) -> None:
        layout = RunLayout(run or self.record.run)
        self.cluster.data.write(layout.outcome, outcome.model_dump_json().encode())

    def outcome(self, run: str | None = None) -> Outcome | None:
        return Cluster(self.cluster.stack, REGION).outcome(run or self.record.run)

    def current(self) -> RunRecord:
        return RunRecord.model_validate_json(self.cluster.staging.read(CURRENT_RUN))

    def change_manifest(self, job: Mapping[str, Any] | None = None, **group: Any) -> Manifest:
        """Write a manifest with changes of its job and its group."""
        manifest = self.cluster.manifest
        groups = tuple(each.model_copy(update=group) for each in manifest.groups)
        changed = manifest.model_copy(update={"job": manifest.job.model_copy(update=dict(job or {})), "groups": groups})
        self.cluster.staging.write(MANIFEST, changed.model_dump_json().encode())
        return changed

    def start_job_of_next_run(self) -> None:
        """Write the events of a started job as soon as a new run exists."""

        def act() -> bool:
            current, members = self.current(), self.cluster.members()
            if current.run == self.record.run or len(members) < current.nodes:
                return False
            for node in members:
                self.cluster.write_agent_event(current.run, node, "workers_up", 1)
            return True

        self._start(act)

    def stop_agents_when_requested(self, nodes: list[str]) -> None:
        """Write the events of agents that stop the job when the run has an outcome."""

        def act() -> bool:
            if self.outcome() is None:
                return False
            for node in nodes:
                self.cluster.write_agent_event(self.record.run, node, "stopped", 1)
            return True

        self._start(act)

    def launch(self, **options: Any) -> tuple[Launch, RecordingDisplay]:
        display = RecordingDisplay()
        return Launch(Cluster(self.cluster.stack, REGION), display, LaunchOptions(**options)), display


@pytest.fixture
def earlier(account: EmulatedAws, run_in_background: RunInBackground) -> EarlierRun:
    return EarlierRun(run_in_background)


def stop_launch(*_: object) -> None:
    raise LaunchError("stopped by the test")


def count_launches(account: EmulatedAws, act: Callable[[], object]) -> int:
    before = len(account.capacity_requests())
    act()
    return sum(request.granted for request in account.capacity_requests()[before:])


def test_new_run_uses_kept_nodes_and_launches_none(account: EmulatedAws, earlier: EarlierRun) -> None:
    earlier.end()
    earlier.change_manifest({"command": ("train.py", "--lr", "1")})
    earlier.start_job_of_next_run()
    launch, display = earlier.launch()
    assert count_launches(account, launch.start) == 0
    record = earlier.current()
    assert sorted(earlier.cluster.members()) == sorted(earlier.nodes)
    assert record.previous_run == earlier.record.run
    assert sorted(record.healthy_nodes) == sorted(earlier.nodes)
    assert any("the job starts on 2 nodes of run" in line for line in display.lines)


def test_new_run_uses_the_reservations(earlier: EarlierRun) -> None:
    earlier.record = earlier.record.model_copy(update={"reservations": ("cr-1",)})
    earlier.cluster.staging.write(CURRENT_RUN, earlier.record.model_dump_json().encode())
    earlier.end()
    earlier.start_job_of_next_run()
    earlier.launch(new_run=True)[0].start()
    assert earlier.current().reservations == ("cr-1",)


def test_changed_environment_requires_a_health_check(earlier: EarlierRun) -> None:
    earlier.end()
    earlier.change_manifest({"environment": {"NCCL_ALGO": "Ring"}})
    earlier.start_job_of_next_run()
    earlier.launch()[0].start()
    assert earlier.current().healthy_nodes == ()


def test_changed_software_uses_the_nodes_after_the_playbook(account: EmulatedAws, earlier: EarlierRun) -> None:
    earlier.end()
    earlier.change_manifest(efa_interfaces=4)
    earlier.start_job_of_next_run()
    launch, display = earlier.launch()
    assert count_launches(account, launch.start) == 0
    assert earlier.current().healthy_nodes == ()
    assert any("the node playbook runs again on 2 nodes" in line for line in display.lines)


def test_moved_tag_of_the_container_image_runs_the_playbook(earlier: EarlierRun) -> None:
    manifest = earlier.change_manifest({"container": f"{REGISTRY}/kept-nodes:1"})
    digest = push_image("kept-nodes", "1", "content")
    job = manifest.job.model_copy(update={"container": f"{REGISTRY}/kept-nodes@{digest}"})
    earlier.record = earlier.record.model_copy(update={"node_digest": manifest.node_digest(), "job": job})
    earlier.cluster.staging.write(CURRENT_RUN, earlier.record.model_dump_json().encode())
    push_image("kept-nodes", "1", "other content")
    earlier.end()
    earlier.start_job_of_next_run()
    launch, display = earlier.launch(new_run=True)
    launch.start()
    assert earlier.current().healthy_nodes == ()
    assert any("the node playbook runs again on 2 nodes" in line for line in display.lines)


def test_changed_instances_are_launched(account: EmulatedAws, earlier: EarlierRun) -> None:
    earlier.end()
    earlier.change_manifest(instance_digest="other")
    earlier.start_job_of_next_run()
    assert count_launches(account, earlier.launch()[0].start) == 2
    assert not set(earlier.nodes) & set(earlier.cluster.members())
    assert earlier.current().previous_run is None


def test_more_nodes_launch_the_missing_only(account: EmulatedAws, earlier: EarlierRun) -> None:
    earlier.end()
    earlier.change_manifest(nodes=3)
    earlier.start_job_of_next_run()
    assert count_launches(account, earlier.launch(new_run=True)[0].start) == 1
    assert set(earlier.nodes) < set(earlier.cluster.members())


def test_fewer_nodes_terminate_the_surplus(account: EmulatedAws, earlier: EarlierRun) -> None:
    earlier.end()
    earlier.change_manifest(nodes=1)
    earlier.start_job_of_next_run()
    assert count_launches(account, earlier.launch(new_run=True)[0].start) == 0
    eventually(lambda: len(earlier.cluster.members()) == 1, "the termination of one node")


def test_unhealthy_nodes_are_not_used(account: EmulatedAws, earlier: EarlierRun) -> None:
    earlier.write_control(Control(attempt=1, nodes=tuple(earlier.nodes), unhealthy_nodes=(earlier.nodes[0],)))
    earlier.end()
    earlier.start_job_of_next_run()
    assert count_launches(account, earlier.launch(new_run=True)[0].start) == 1
    assert earlier.nodes[0] not in earlier.cluster.members()


def test_nodes_are_not_used_shortly_before_their_termination(account: EmulatedAws, earlier: EarlierRun) -> None:
    """The controller may be about to terminate them."""
    earlier.end(minutes=0.1)
    earlier.start_job_of_next_run()
    assert count_launches(account, earlier.launch(new_run=True)[0].start) == 2


def test_new_run_uses_the_nodes_of_the_replaced_run(account: EmulatedAws, earlier: EarlierRun) -> None:
    earlier.change_manifest({"command": ("train.py", "--lr", "1")})
    earlier.cluster.data.write(f"{earlier.layout.checkpoints}step-00000001/.metadata", b"x")
    earlier.stop_agents_when_requested(earlier.nodes)
    earlier.start_job_of_next_run()
    assert count_launches(account, earlier.launch(replace_running=True)[0].start) == 0
    assert earlier.current().job.resume == earlier.record.run
    outcome = earlier.outcome()
    assert outcome is not None
    assert outcome.state == "stopped"


def test_node_that_does_not_stop_its_job_is_replaced(
    account: EmulatedAws, earlier: EarlierRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_nodes, "STOP_MINUTES", 0.02)
    earlier.change_manifest({"command": ("train.py", "--lr", "1")})
    earlier.stop_agents_when_requested(earlier.nodes[:1])
    earlier.start_job_of_next_run()
    assert count_launches(account, earlier.launch(replace_running=True)[0].start) == 1
    assert earlier.nodes[1] not in earlier.cluster.members()


def test_active_run_is_not_replaced_without_permission(earlier: EarlierRun) -> None:
    with pytest.raises(LaunchError, match="is active, and this launch would stop it"):
        earlier.launch(new_run=True)[0].start()
    assert earlier.outcome() is None


def test_nodes_are_kept_when_the_job_of_a_launch_fails(
    account: EmulatedAws, earlier: EarlierRun, run_in_background: RunInBackground
) -> None:
    earlier.end(minutes=0)
    stop_run(Cluster(earlier.cluster.stack, REGION), RecordingDisplay())

    def fail() -> bool:
        run = earlier.current().run
        if run == earlier.record.run or len(earlier.cluster.members()) < 2:
            return False
        outcome = Outcome(state="failed", reason="NameError: x", attempts=2, ended_at=time.time(), failure=FAILURE)
        earlier.write_outcome(outcome.model_copy(update={"nodes_kept_until": time.time() + 900}), run)
        return True

    run_in_background(fail)
    with pytest.raises(LaunchError, match=r"NameError: x(.|\n)*the nodes are kept until .* trainyard run -s"):
        earlier.launch(new_run=True)[0].start()
    assert len(earlier.cluster.members()) == 2


def test_launch_that_fails_before_its_run_keeps_the_nodes_as_long_as_before(
    earlier: EarlierRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier.end(minutes=20)
    before = earlier.outcome()
    launch, _ = earlier.launch(new_run=True)
    monkeypatch.setattr(launch, "reserve_capacity", stop_launch)
    with pytest.raises(LaunchError, match="stopped by the test"):
        launch.start()
    assert earlier.outcome() == before


def test_nodes_of_a_run_that_was_launched_meanwhile_are_not_used(
    earlier: EarlierRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier.end()
    other = earlier.record.model_copy(update={"run": "other"})

    def launch_another(*_: object) -> None:
        earlier.cluster.staging.write(CURRENT_RUN, other.model_dump_json().encode())

    monkeypatch.setattr(launch_module, "wait_for_head", launch_another)
    with pytest.raises(LaunchError, match="run other was launched while this launch was prepared"):
        earlier.launch(new_run=True)[0].start()
    assert earlier.current() == other
    assert sorted(earlier.cluster.members()) == sorted(earlier.nodes)


def test_nodes_that_are_terminated_during_the_wait_for_capacity_are_launched_again(
    account: EmulatedAws, earlier: EarlierRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier.end()
    launch, _ = earlier.launch(new_run=True, wait=False)
    terminate = {"InstanceId": earlier.nodes[0], "ShouldDecrementDesiredCapacity": True}

    def wait(*_: object) -> None:
        client("autoscaling", REGION).terminate_instance_in_auto_scaling_group(**terminate)
        eventually(lambda: earlier.nodes[0] not in launch.workers.in_service(), "the end of the node's service")

    monkeypatch.setattr(launch, "reserve_capacity", wait)
    assert count_launches(account, launch.start) == 1
    assert earlier.nodes[1] in earlier.cluster.members()


def test_run_that_ends_at_the_same_time_keeps_its_outcome(
    account: EmulatedAws, earlier: EarlierRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller records the success between the two requests of the launch."""
    earlier.change_manifest({"command": ("train.py", "--lr", "1")})

    def create(bucket: Bucket, key: str, content: bytes) -> bool:
        earlier.end(minutes=10)
        return False

    monkeypatch.setattr(Bucket, "create", create)
    earlier.start_job_of_next_run()
    assert count_launches(account, earlier.launch(replace_running=True)[0].start) == 0
    outcome = earlier.outcome()
    assert outcome is not None
    assert (outcome.state, outcome.reason) == ("succeeded", "done")


def test_nodes_of_a_failed_run_pass_a_health_check_again(earlier: EarlierRun) -> None:
    earlier.end(state="failed")
    earlier.start_job_of_next_run()
    earlier.launch(new_run=True)[0].start()
    assert earlier.current().healthy_nodes == ()


def test_failed_run_of_trainyard_run_is_not_launched_by_the_next_update(earlier: EarlierRun) -> None:
    failed = Outcome(state="failed", reason="r", attempts=0, ended_at=1.0, launch_failed=True)
    assert launch_trigger(earlier.record, failed) == earlier.record.run
    assert launch_trigger(earlier.record.model_copy(update={"deployed_digest": "0" * 64}), failed) == "none"


def test_failed_replacement_is_launched_again_by_the_next_update(
    earlier: EarlierRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reservations are cancelled with its nodes, since no run uses them."""
    earlier.change_manifest({"command": ("train.py", "--lr", "1")})
    earlier.stop_agents_when_requested(earlier.nodes)
    launch, _ = earlier.launch(replace_running=True)

    monkeypatch.setattr(launch, "reserve_capacity", stop_launch)
    with pytest.raises(LaunchError, match="stopped by the test"):
        launch.start()
    outcome = earlier.outcome()
    assert outcome is not None
    assert not outcome.keeps_reservations
    assert launch_trigger(earlier.record, outcome) == earlier.record.run


def test_interrupted_launch_on_kept_nodes_keeps_them_for_the_time_after_a_failure(
    earlier: EarlierRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = earlier.cluster.manifest.limits.model_copy(update={"keep_after_failure_minutes": 15.0})
    earlier.cluster.manifest = earlier.cluster.manifest.model_copy(update={"limits": limits})
    earlier.change_manifest()
    earlier.end()
    launch, _ = earlier.launch(new_run=True)

    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(launch, "report_capacity_limit", lambda run: interrupt())
    with pytest.raises(KeyboardInterrupt):
        launch.start()
    outcome = earlier.outcome(earlier.current().run)
    assert outcome is not None
    assert outcome.keeps_nodes(time.time() + 800)
    assert len(earlier.cluster.members()) == 2


def test_stop_terminates_kept_nodes(earlier: EarlierRun) -> None:
    earlier.end()
    stopped = stop_run(Cluster(earlier.cluster.stack, REGION), RecordingDisplay())
    assert sorted(stopped.nodes) == sorted(earlier.nodes)
    outcome = earlier.outcome()
    assert outcome is not None
    assert not outcome.keeps_nodes(time.time())
    assert outcome.state == "succeeded"


def test_status_shows_until_when_nodes_are_kept_and_their_price(earlier: EarlierRun) -> None:
    earlier.change_manifest(node_usd_per_hour=10.0)
    earlier.end()
    lines = format_status(read_status(Cluster(earlier.cluster.stack, REGION), None), earlier.cluster.stack)
    assert any("the nodes are kept until" in line and "cost 20.00 USD per hour" in line for line in lines), lines
