"""Several worker groups: nodes of each by its own way, and all of them or none."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from rehearsal.aws.faults import Deny
from rehearsal.aws.process import EmulatedAws
from tests import clusters
from tests.conftest import REGION
from tests.trainyard.operations.conftest import Recorder
from trainyard.base import InputError
from trainyard.models.layout import CURRENT_RUN, RunLayout
from trainyard.models.manifest import WorkerGroup
from trainyard.models.run import Control, RunRecord
from trainyard.operations import capacity
from trainyard.operations.cluster import Cluster
from trainyard.operations.errors import CapacityError, LaunchError
from trainyard.operations.launch import Launch
from trainyard.operations.worker_groups import Workers

pytestmark = pytest.mark.usefixtures("quick")
NO_CAPACITY = "We currently do not have sufficient capacity."


class Both:
    """A base group of two nodes, and a Capacity Block's of one."""

    def __init__(self) -> None:
        self.cluster = clusters.build(REGION, train=None, command=("train.py",))
        self.block = self.cluster.add_group("block", nodes=1, market="capacity-block")
        self.show = Recorder()

    @property
    def workers(self) -> Workers:
        return Workers(self.cluster.manifest)

    def launch(self) -> Launch:
        return Launch(Cluster(self.cluster.stack, REGION), self.show)

    def block_members(self) -> list[str]:
        return self.cluster.members(self.block.autoscaling_group)

    def desired(self) -> tuple[int, int]:
        block = self.cluster.described(self.block.autoscaling_group)
        return self.cluster.described()["DesiredCapacity"], block["DesiredCapacity"]

    def ends(self, when: float | None) -> None:
        """The block's capacity ends then."""
        first, block = self.cluster.manifest.groups
        self.cluster.want((first, block.model_copy(update={"ends": when})))

    def resized(self, base: int, block: int) -> None:
        first, second = self.cluster.manifest.groups
        sizes: tuple[tuple[WorkerGroup, int], ...] = ((first, base), (second, block))
        self.cluster.want(tuple(group.model_copy(update={"nodes": nodes}) for group, nodes in sizes))


@pytest.fixture
def both(account: EmulatedAws, monkeypatch: pytest.MonkeyPatch) -> Both:
    monkeypatch.setattr(capacity, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(capacity, "CAPACITY_SECONDS", 0.5)
    return Both()


@pytest.fixture
def limited(account: EmulatedAws) -> Iterator[Any]:
    """Capacity for so many more nodes."""

    def limit(more: int) -> None:
        account.inject(clusters.room_for(account, more))

    yield limit
    account.clear_faults()


def test_each_group_is_asked_in_its_own_way(both: Both) -> None:
    added = both.workers.add({"workers": 2, "block": 1}, "run-1", both.show)
    assert sorted(added) == sorted([*both.cluster.members(), *both.block_members()])
    assert (len(both.cluster.members()), len(both.block_members())) == (2, 1)
    assert both.desired() == (2, 1)


def test_too_few_by_the_desired_capacity_means_none(both: Both, limited: Any) -> None:
    both.resized(base=2, block=3)
    limited(1)
    workers = both.workers
    with pytest.raises(CapacityError, match=r"1 of 5 nodes could be launched, so none stays: group block: .*within"):
        workers.add({"workers": 2, "block": 3}, "run-1", both.show)
    assert workers.take_back(both.show) == []
    assert both.block_members() == both.cluster.members() == []
    assert both.desired() == (0, 0)


def test_the_activities_say_why_nodes_did_not_come(both: Both, limited: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    earlier = {"ActivityId": "1", "StatusCode": "Failed", "StatusMessage": "of another launch"}
    failed = {"ActivityId": "2", "StatusCode": "Failed", "StatusMessage": NO_CAPACITY}
    answers = iter([[earlier]])
    monkeypatch.setattr(capacity, "_activities", lambda *_: next(answers, [failed, earlier]))
    limited(0)
    with pytest.raises(CapacityError, match=rf"0 of 1 nodes .*: group block: {NO_CAPACITY}; no more came to"):
        both.workers.add({"block": 1}, "run-1", both.show)
    assert both.show.lines[0] == f"block {NO_CAPACITY}"


def test_what_came_by_the_desired_capacity_goes_when_another_group_lacks(both: Both, limited: Any) -> None:
    limited(2)
    workers = both.workers
    with pytest.raises(CapacityError, match=r"2 of 3 nodes .* group workers: InsufficientInstanceCapacity"):
        workers.add({"workers": 2, "block": 1}, "run-1", both.show)
    workers.take_back(both.show)
    assert both.block_members() == both.cluster.members() == []
    assert both.desired() == (0, 0)


def test_a_refused_desired_capacity_is_told(both: Both, account: EmulatedAws) -> None:
    account.inject(Deny(operation="autoscaling:SetDesiredCapacity"))
    try:
        with pytest.raises(CapacityError, match=r"0 of 1 nodes .* group block: AccessDenied"):
            both.workers.add({"block": 1}, "run-1", both.show)
    finally:
        account.clear_faults()


def running(both: Both) -> RunRecord:
    """The run of all nodes, in its first attempt."""
    nodes = both.workers.add({"workers": 2, "block": 1}, "run-1", both.show)
    record = both.cluster.record()
    for bucket, key in ((both.cluster.data, RunLayout(record.run).record), (both.cluster.staging, CURRENT_RUN)):
        bucket.write(key, record.model_dump_json().encode())
    control = Control(attempt=1, nodes=tuple(nodes), started=True)
    both.cluster.data.write(RunLayout(record.run).control, control.model_dump_json().encode())
    return record


def test_a_growth_that_fails_leaves_each_group_as_it_was(both: Both, limited: Any) -> None:
    record = running(both)
    before = both.cluster.members(), both.block_members()
    both.resized(base=3, block=3)
    limited(1)
    with pytest.raises(LaunchError, match="1 of 3 nodes could be launched, so none stays: group block"):
        both.launch().go(update=True)
    assert (both.cluster.members(), both.block_members()) == before
    assert both.desired() == (2, 1)
    assert f"run {record.run} goes on with its 3 nodes" in both.show.lines


def test_only_the_group_that_lacks_nodes_is_given_some(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    running(both)
    both.resized(base=2, block=2)
    made = both.launch()
    asked: list[dict[str, int]] = []

    def add(wanted: dict[str, int]) -> list[str]:
        asked.append(wanted)
        raise LaunchError("seen")

    monkeypatch.setattr(made, "_add", add)
    with pytest.raises(LaunchError, match="seen"):
        made.go(update=True)
    assert asked == [{"workers": 0, "block": 1}]


def test_nodes_that_move_from_group_to_group_are_another_launch(both: Both) -> None:
    record = running(both)
    both.resized(base=1, block=2)
    with pytest.raises(LaunchError, match=f"run {record.run} is still on the cluster"):
        both.launch().go()


def test_an_unchanged_manifest_launches_nothing_in_any_group(both: Both) -> None:
    record = running(both)
    result = both.launch().go(update=True)
    assert (result.run, len(result.nodes)) == (record.run, 3)


def test_a_lost_node_is_not_taken_for_a_growth(both: Both) -> None:
    record = running(both)
    (lost,) = both.block_members()
    both.cluster.autoscaling.terminate_instance_in_auto_scaling_group(
        InstanceId=lost, ShouldDecrementDesiredCapacity=True
    )
    assert both.launch().go(update=True).run == record.run


def test_a_run_has_the_nodes_of_all_groups(both: Both) -> None:
    assert both.launch().record.nodes == 3


def test_capacity_that_ends_before_the_bring_up_is_refused(both: Both) -> None:
    both.ends(time.time() + 4 * 60)
    why = r"end of the capacity of group block = .* UTC': that is in 4 minutes, and a launch may take 5 \(launch.bring"
    with pytest.raises(InputError, match=why):
        both.launch().go()
    assert both.cluster.staging.find(CURRENT_RUN) is None


def test_a_run_does_not_make_way_for_one_that_can_not_be(both: Both) -> None:
    record = running(both)
    both.ends(time.time() + 4 * 60)
    both.resized(base=1, block=1)
    with pytest.raises(InputError, match="end of the capacity"):
        both.launch().go(update=True)
    assert Cluster(both.cluster.stack, REGION).outcome(record.run) is None
    assert len(both.cluster.members()) == 2


def test_the_end_of_the_capacity_shortens_the_time_limit(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = time.time() + 10 * 60
    both.ends(ends)
    both.cluster.head_is_ready()
    made = both.launch()

    def add(wanted: dict[str, int]) -> list[str]:
        raise LaunchError("seen")

    monkeypatch.setattr(made, "_add", add)
    with pytest.raises(LaunchError, match="seen"):
        made.go()
    assert made.record.deadline == ends
    assert both.cluster.lease() == pytest.approx(ends, abs=1.0)
    (said,) = [line for line in both.show.lines if line.startswith("time limit")]
    assert "10 minutes after the launch, not 60 (job.time_limit_minutes)" in said


def test_a_new_end_of_the_capacity_is_a_new_deadline(both: Both) -> None:
    record = running(both)
    ends = record.created + 30 * 60
    both.ends(ends)
    both.launch().go(update=True)
    current = Cluster(both.cluster.stack, REGION).current_run()
    assert current is not None
    assert current.deadline == ends
    assert f"run {record.run} has new deadlines: it ends 30 minutes after its launch" in both.show.lines
