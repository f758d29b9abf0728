"""Several worker groups: each has its launch method, and a launch starts all nodes or none."""

import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from botocore.exceptions import ReadTimeoutError

from rehearsal.aws.faults import Deny, EventualConsistency, MemberOmission, ScalingActivity
from rehearsal.aws.process import EmulatedAws
from rehearsal.aws.timing import Timing
from tests import clusters
from tests.conftest import REGION
from tests.polling import eventually
from tests.trainyard.operations.conftest import RecordingDisplay
from trainyard.aws import autoscaling
from trainyard.aws.clients import client
from trainyard.errors import InputError
from trainyard.models.layout import CURRENT_RUN, RunLayout
from trainyard.models.manifest import WorkerGroup
from trainyard.models.run import Control, RunRecord
from trainyard.operations import node_launch, scaling_activities
from trainyard.operations.cluster import Cluster
from trainyard.operations.errors import CapacityError, LaunchError
from trainyard.operations.launch import Launch
from trainyard.operations.worker_groups import WorkerGroups

pytestmark = pytest.mark.usefixtures("fast_polls")
PENDING_SECONDS = 3.0
NO_CAPACITY = "We currently do not have sufficient capacity"


class TwoGroups:
    """An on-demand group of two nodes and a Capacity Block group of one node."""

    def __init__(self) -> None:
        self.cluster = clusters.create_cluster(REGION, train=None, command=("train.py",))
        self.block = self.cluster.add_group("block", nodes=1, market="capacity-block")
        self.display = RecordingDisplay()

    @property
    def workers(self) -> WorkerGroups:
        return WorkerGroups(self.cluster.manifest)

    def create_launch(self) -> Launch:
        return Launch(Cluster(self.cluster.stack, REGION), self.display)

    def block_members(self) -> list[str]:
        return self.cluster.members(self.block.autoscaling_group)

    def desired_capacities(self) -> tuple[int, int]:
        block = self.cluster.describe_group(self.block.autoscaling_group)
        return self.cluster.describe_group()["DesiredCapacity"], block["DesiredCapacity"]

    def set_capacity_end_time(self, unix_time: float | None) -> None:
        """Set the end of the Capacity Block."""
        first, block = self.cluster.manifest.groups
        self.cluster.set_groups((first, block.model_copy(update={"capacity_end_time": unix_time})))

    def resize(self, base: int, block: int) -> None:
        first, second = self.cluster.manifest.groups
        sizes: tuple[tuple[WorkerGroup, int], ...] = ((first, base), (second, block))
        self.cluster.set_groups(tuple(group.model_copy(update={"nodes": nodes}) for group, nodes in sizes))


@pytest.fixture
def groups(account: EmulatedAws, monkeypatch: pytest.MonkeyPatch) -> TwoGroups:
    monkeypatch.setattr(node_launch, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(node_launch, "CAPACITY_TIMEOUT_SECONDS", 0.5)
    return TwoGroups()


@pytest.fixture
def limit_capacity(account: EmulatedAws) -> Iterator[Any]:
    """Limit the capacity to a number of additional nodes."""

    def limit(more: int) -> None:
        account.inject(clusters.capacity_limit(account, more))

    yield limit
    account.clear_faults()


def test_each_group_uses_the_configured_launch_method(groups: TwoGroups) -> None:
    added = groups.workers.add_nodes({"workers": 2, "block": 1}, "run-1", groups.display)
    assert sorted(added) == sorted([*groups.cluster.members(), *groups.block_members()])
    assert (len(groups.cluster.members()), len(groups.block_members())) == (2, 1)
    assert groups.desired_capacities() == (2, 1)


def test_rollback_when_the_desired_capacity_is_not_reached(groups: TwoGroups, limit_capacity: Any) -> None:
    groups.resize(base=2, block=3)
    limit_capacity(1)
    workers = groups.workers
    with pytest.raises(CapacityError, match=r"1 of 5 requested nodes.*: group block: .*after"):
        workers.add_nodes({"workers": 2, "block": 3}, "run-1", groups.display)
    assert workers.rollback(groups.display) == []
    assert groups.block_members() == groups.cluster.members() == []
    assert groups.desired_capacities() == (0, 0)


def test_error_contains_the_reasons_of_scaling_activities(
    groups: TwoGroups, limit_capacity: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = {"ActivityId": "1", "StatusCode": "Failed", "StatusMessage": "of another launch"}
    failed = {"ActivityId": "2", "StatusCode": "Failed", "StatusMessage": NO_CAPACITY}
    responses = iter([[earlier]])
    monkeypatch.setattr(autoscaling, "describe_activities", lambda *_: next(responses, [failed, earlier]))
    limit_capacity(0)
    with pytest.raises(CapacityError, match=rf"0 of 1 requested nodes.*: group block: {NO_CAPACITY}; group "):
        groups.workers.add_nodes({"block": 1}, "run-1", groups.display)
    assert groups.display.lines[0] == f"block {NO_CAPACITY}"


def test_rollback_covers_all_groups_when_a_group_is_short(groups: TwoGroups, limit_capacity: Any) -> None:
    limit_capacity(2)
    workers = groups.workers
    with pytest.raises(CapacityError, match=r"2 of 3 requested nodes.* group workers: InsufficientInstanceCapacity"):
        workers.add_nodes({"workers": 2, "block": 1}, "run-1", groups.display)
    workers.rollback(groups.display)
    assert groups.block_members() == groups.cluster.members() == []
    assert groups.desired_capacities() == (0, 0)


@pytest.fixture
def pending(account: EmulatedAws, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Instances are pending for some seconds after their launch."""
    account.set_timing(Timing(pending_seconds=PENDING_SECONDS))
    yield
    account.set_timing(Timing())


@pytest.mark.parametrize("timeout_seconds", [60.0, 0.1])
def test_rollback_terminates_pending_instances(
    groups: TwoGroups, limit_capacity: Any, pending: None, timeout_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Auto Scaling once they run, or in EC2 after the timeout."""
    monkeypatch.setattr(scaling_activities, "RETRY_DELAY_SECONDS", 0.05)
    monkeypatch.setattr(scaling_activities, "LAUNCH_TIMEOUT_SECONDS", timeout_seconds)
    limit_capacity(1)
    workers = groups.workers
    with pytest.raises(CapacityError):
        workers.add_nodes({"workers": 2}, "run-1", groups.display)
    assert workers.rollback(groups.display) == []
    assert groups.cluster.members() == []
    assert groups.desired_capacities() == (0, 0)


def test_capacity_is_lowered_after_scaling_activities(
    groups: TwoGroups,
    limit_capacity: Any,
    pending: None,
    account: EmulatedAws,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise Auto Scaling would replace what the rollback has terminated in EC2."""
    monkeypatch.setattr(scaling_activities, "RETRY_DELAY_SECONDS", 0.05)
    monkeypatch.setattr(scaling_activities, "LAUNCH_TIMEOUT_SECONDS", 5.0)
    limit_capacity(1)
    workers = groups.workers
    with pytest.raises(CapacityError):
        workers.add_nodes({"workers": 2}, "run-1", groups.display)
    account.inject(ScalingActivity(times=2))
    monkeypatch.setattr(scaling_activities.NodeTerminations, "_terminate_in_groups", lambda _, names, *__: names)
    assert workers.rollback(groups.display) == []
    assert groups.desired_capacities() == (0, 0)


def test_block_does_not_use_the_reservation_and_subnet_of_an_earlier_launch(groups: TwoGroups) -> None:
    """The stack reserved on-demand capacity in another zone before it had a Capacity Block."""
    name, (subnet, other) = groups.block.autoscaling_group, groups.block.subnets
    autoscaling.set_launch_target(REGION, name, other.id, "cr-0123456789abcdef0")
    workers = groups.workers
    assert len(workers.add_nodes({"block": 1}, "run-1", groups.display)) == 1
    description = groups.cluster.describe_group(name)
    assert description["VPCZoneIdentifier"] == subnet.id
    assert "CapacityReservationTarget" not in description["CapacityReservationSpecification"]
    workers.rollback(groups.display)


def test_refused_desired_capacity_is_reported(groups: TwoGroups, account: EmulatedAws) -> None:
    account.inject(Deny(operation="autoscaling:SetDesiredCapacity"))
    try:
        with pytest.raises(CapacityError, match=r"0 of 1 requested nodes.* group block: AccessDenied"):
            groups.workers.add_nodes({"block": 1}, "run-1", groups.display)
    finally:
        account.clear_faults()


def start_run(groups: TwoGroups) -> RunRecord:
    """Start a run on all nodes, in its first attempt."""
    nodes = groups.workers.add_nodes({"workers": 2, "block": 1}, "run-1", groups.display)
    record = groups.cluster.create_run_record()
    for bucket, key in ((groups.cluster.data, RunLayout(record.run).record), (groups.cluster.staging, CURRENT_RUN)):
        bucket.write(key, record.model_dump_json().encode())
    control = Control(attempt=1, nodes=tuple(nodes), started=True)
    groups.cluster.data.write(RunLayout(record.run).control, control.model_dump_json().encode())
    return record


def test_failed_scale_out_restores_each_group(groups: TwoGroups, limit_capacity: Any) -> None:
    record = start_run(groups)
    before = groups.cluster.members(), groups.block_members()
    groups.resize(base=3, block=3)
    limit_capacity(1)
    with pytest.raises(LaunchError, match=r"1 of 3 requested nodes.*: group block"):
        groups.create_launch().start(update=True)
    assert (groups.cluster.members(), groups.block_members()) == before
    assert groups.desired_capacities() == (2, 1)
    assert f"run {record.run} continues with its 3 nodes and costs 0.25 USD per hour" in groups.display.lines


def test_nodes_are_added_only_to_the_group_that_misses_some(groups: TwoGroups, monkeypatch: pytest.MonkeyPatch) -> None:
    start_run(groups)
    groups.resize(base=2, block=2)
    launch = groups.create_launch()
    requests: list[dict[str, int]] = []

    def fail(counts: dict[str, int]) -> list[str]:
        requests.append(counts)
        raise LaunchError("stopped by the test")

    monkeypatch.setattr(launch, "add_nodes", fail)
    with pytest.raises(LaunchError, match="stopped by the test"):
        launch.start(update=True)
    assert requests == [{"workers": 0, "block": 1}]


def test_nodes_that_move_between_groups_are_no_scale_out(groups: TwoGroups) -> None:
    record = start_run(groups)
    groups.resize(base=1, block=2)
    with pytest.raises(LaunchError, match=f"run {record.run} is active, and this launch would stop it"):
        groups.create_launch().start()


def test_unchanged_manifest_launches_nothing_in_any_group(groups: TwoGroups) -> None:
    record = start_run(groups)
    result = groups.create_launch().start(update=True)
    assert (result.run, len(result.nodes)) == (record.run, 3)


def test_lost_node_is_no_scale_out(groups: TwoGroups) -> None:
    record = start_run(groups)
    (lost,) = groups.block_members()
    groups.cluster.autoscaling.terminate_instance_in_auto_scaling_group(
        InstanceId=lost, ShouldDecrementDesiredCapacity=True
    )
    assert groups.create_launch().start(update=True).run == record.run


def test_run_has_the_nodes_of_all_groups(groups: TwoGroups) -> None:
    assert groups.create_launch().record.nodes == 3


def test_capacity_that_ends_during_startup_is_refused(groups: TwoGroups) -> None:
    groups.set_capacity_end_time(time.time() + 4 * 60)
    reason = (
        r"end of the capacity of group block = .* UTC': that is 4 minutes from now, and a launch may take 5 minutes"
    )
    with pytest.raises(InputError, match=reason):
        groups.create_launch().start()
    assert groups.cluster.staging.find(CURRENT_RUN) is None


def test_active_run_is_not_stopped_for_a_manifest_that_is_refused(groups: TwoGroups) -> None:
    record = start_run(groups)
    groups.set_capacity_end_time(time.time() + 4 * 60)
    groups.resize(base=1, block=1)
    with pytest.raises(InputError, match="end of the capacity"):
        groups.create_launch().start(update=True)
    assert Cluster(groups.cluster.stack, REGION).outcome(record.run) is None
    assert len(groups.cluster.members()) == 2


def test_capacity_end_shortens_the_time_limit(groups: TwoGroups, monkeypatch: pytest.MonkeyPatch) -> None:
    end_time = time.time() + 10 * 60
    groups.set_capacity_end_time(end_time)
    groups.cluster.write_head_ready_events()
    launch = groups.create_launch()

    def fail(counts: dict[str, int]) -> list[str]:
        raise LaunchError("stopped by the test")

    monkeypatch.setattr(launch, "add_nodes", fail)
    with pytest.raises(LaunchError, match="stopped by the test"):
        launch.start()
    assert launch.record.deadline == end_time
    assert groups.cluster.lease_end() == pytest.approx(end_time, abs=1.0)
    (line,) = [line for line in groups.display.lines if line.startswith("time limit")]
    assert "10 minutes after the launch, not 60 (job.time_limit_minutes)" in line


def test_new_capacity_end_changes_the_deadline(groups: TwoGroups) -> None:
    record = start_run(groups)
    end_time = record.created + 30 * 60
    groups.set_capacity_end_time(end_time)
    groups.create_launch().start(update=True)
    current = Cluster(groups.cluster.stack, REGION).current_run()
    assert current is not None
    assert current.deadline == end_time
    assert f"run {record.run} has new deadlines: it ends 30 minutes after its launch" in groups.display.lines


def test_rollback_keeps_a_member_that_a_response_omitted(account: EmulatedAws, groups: TwoGroups) -> None:
    """A member that is missing from a response before the launch is no added node."""
    (older,) = groups.cluster.launch_instances(1)
    account.inject(MemberOmission(every=2))
    workers = groups.workers
    workers.add_nodes({"workers": 1}, "run-kept", groups.display)
    account.clear_faults()
    workers.rollback(groups.display)
    eventually(lambda: groups.cluster.members() == [older], "only the older node remains")


def test_rollback_terminates_a_member_that_a_response_omits(account: EmulatedAws, groups: TwoGroups) -> None:
    workers = groups.workers
    workers.add_nodes({"workers": 1}, "run-omitted", groups.display)
    account.inject(MemberOmission(every=2))
    workers.rollback(groups.display)
    account.clear_faults()
    eventually(lambda: groups.cluster.members() == [], "no node remains")


def test_rollback_terminates_nodes_that_no_response_contains_yet(account: EmulatedAws, groups: TwoGroups) -> None:
    account.inject(EventualConsistency(seconds=600))
    workers = groups.workers
    added = workers.add_nodes({"workers": 2}, "run-new", groups.display)
    assert workers.rollback(groups.display) == []
    account.clear_faults()
    assert groups.display.lines == [f"nodes rolled back, terminated: {', '.join(added)}"]
    assert groups.cluster.members() == []
    assert groups.desired_capacities() == (0, 0)


def test_rollback_does_not_decrease_the_capacity_twice(
    account: EmulatedAws, groups: TwoGroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Auto Scaling does not terminate a node, EC2 does, and the first SetDesiredCapacity has no response."""
    groups.workers.add_nodes({"workers": 1}, "run-1", groups.display)
    workers = groups.workers
    workers.add_nodes({"workers": 1}, "run-2", groups.display)
    set_capacity, calls = autoscaling.set_desired_capacity, count()

    def lose_response(*arguments: Any) -> None:
        set_capacity(*arguments)
        if next(calls) == 0:
            raise ReadTimeoutError(endpoint_url="https://autoscaling.us-east-1.amazonaws.com")

    monkeypatch.setattr(scaling_activities, "RETRY_DELAY_SECONDS", 0.0)
    monkeypatch.setattr(autoscaling, "set_desired_capacity", lose_response)
    account.inject(Deny(operation="autoscaling:TerminateInstanceInAutoScalingGroup"))
    assert workers.rollback(groups.display) == []
    account.clear_faults()
    assert next(calls) == 2
    assert (len(groups.cluster.members()), groups.desired_capacities()) == (1, (1, 0))


def test_rollback_ends_nodes_of_a_group_that_was_scaled_to_zero(groups: TwoGroups) -> None:
    """The controller sets the desired capacity to 0 when the launch has recorded the failure."""
    workers = groups.workers
    added = workers.add_nodes({"workers": 2}, "run-zero", groups.display)
    client("autoscaling", REGION).suspend_processes(
        AutoScalingGroupName=groups.cluster.group, ScalingProcesses=["Terminate"]
    )
    autoscaling.set_desired_capacity(REGION, groups.cluster.group, 0)
    assert workers.rollback(groups.display) == []
    eventually(lambda: groups.cluster.members() == [], "the group is empty")
    assert groups.display.lines == [f"nodes rolled back, terminated: {', '.join(added)}"]
