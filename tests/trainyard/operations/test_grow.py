"""A manifest that wants more nodes: the run on the cluster gets them, or stays as it was."""

import time
from typing import Any

import pytest

from rehearsal.aws.faults import Deny
from rehearsal.aws.process import EmulatedAws
from tests import clusters
from tests.conftest import REGION
from tests.trainyard.operations.conftest import Meanwhile, Recorder
from trainyard.models.layout import CURRENT_RUN, MANIFEST, RunLayout
from trainyard.models.run import Control, RunRecord
from trainyard.operations import worker_groups as workers
from trainyard.operations.cluster import Cluster
from trainyard.operations.errors import LaunchError
from trainyard.operations.launch import Launch

pytestmark = pytest.mark.usefixtures("quick")


class Growing:
    """A run of two nodes in its third attempt, and a manifest that has changed since."""

    def __init__(self) -> None:
        self.cluster = clusters.build(REGION, train=None, command=("train.py",))
        self.record = self.cluster.record()
        self.old = self.cluster.launch(2)
        self.layout = RunLayout(self.record.run)
        for bucket, key in ((self.cluster.data, self.layout.record), (self.cluster.staging, CURRENT_RUN)):
            bucket.write(key, self.record.model_dump_json().encode())
        self.started(True)
        self.show = Recorder()

    def started(self, yes: bool) -> None:
        control = Control(attempt=3, nodes=tuple(self.old), started=yes)
        self.cluster.data.write(self.layout.control, control.model_dump_json().encode())

    def want(self, nodes: int, **job: Any) -> None:
        manifest = self.cluster.manifest
        group = manifest.groups[0].model_copy(update={"nodes": nodes})
        asked = {"groups": (group,), "job": manifest.job.model_copy(update=job)}
        self.cluster.staging.write(MANIFEST, manifest.model_copy(update=asked).model_dump_json().encode())

    def launch(self) -> Launch:
        return Launch(Cluster(self.cluster.stack, REGION), self.show)

    def current(self) -> RunRecord:
        return RunRecord.model_validate_json(self.cluster.staging.read(CURRENT_RUN))

    def new(self) -> list[str]:
        return [name for name in self.cluster.members() if name not in self.old]


@pytest.fixture
def growing(account: EmulatedAws) -> Growing:
    return Growing()


def test_the_run_goes_on_with_the_new_nodes(growing: Growing, meanwhile: Meanwhile) -> None:
    growing.want(4)
    run = growing.record.run
    before: list[int] = []

    def act() -> bool:
        new = growing.new()
        if len(new) < 2:
            return False
        if growing.current().nodes == 2:
            if not before:
                for node in new:
                    growing.cluster.agent(run, node, "ready", 0)
                before.append(growing.current().nodes)
            return False
        for node in [*growing.old, *new]:
            growing.cluster.agent(run, node, "workers_up", 4)
        return True

    meanwhile(act)
    result = growing.launch().go(update=True)
    assert (result.run, sorted(result.nodes)) == (run, sorted(growing.cluster.members()))
    assert growing.current() == growing.record.model_copy(update={"nodes": 4})


def test_a_failed_growth_leaves_the_old_nodes(growing: Growing, account: EmulatedAws) -> None:
    growing.want(4)
    account.inject(clusters.room_for(account, 1))
    try:
        with pytest.raises(LaunchError, match=r"1 of 2 nodes .* so none stays: InsufficientInstanceCapacity"):
            growing.launch().go(update=True)
    finally:
        account.clear_faults()
    assert sorted(growing.cluster.members()) == sorted(growing.old)
    assert growing.cluster.described()["DesiredCapacity"] == 2
    assert growing.current() == growing.record
    assert f"run {growing.record.run} goes on with its 2 nodes" in growing.show.lines


def test_a_new_node_that_fails_leaves_the_old_ones(growing: Growing, meanwhile: Meanwhile) -> None:
    growing.want(3)

    def act() -> bool:
        for node in growing.new():
            growing.cluster.play_fails_for_good(growing.record.run, node, "efa: no such device")
            return True
        return False

    meanwhile(act)
    with pytest.raises(LaunchError, match=r"node i-\w+ could not be configured: efa: no such device"):
        growing.launch().go(update=True)
    assert sorted(growing.cluster.members()) == sorted(growing.old)
    assert growing.current() == growing.record


def test_an_attempt_that_does_not_come_up_gives_the_run_back(growing: Growing, meanwhile: Meanwhile) -> None:
    growing.want(3)
    made = growing.launch()

    def act() -> bool:
        for node in growing.new():
            growing.cluster.agent(growing.record.run, node, "ready", 0)
            return True
        return False

    meanwhile(act)
    made.deadline.at -= made.deadline.minutes * 60 - 3
    with pytest.raises(LaunchError, match="the job's start did not come"):
        made.go(update=True)
    assert sorted(growing.cluster.members()) == sorted(growing.old)
    assert growing.current() == growing.record


def test_a_run_that_has_not_started_is_not_grown(growing: Growing) -> None:
    growing.want(4)
    growing.started(False)
    with pytest.raises(LaunchError, match="is still on the cluster"):
        growing.launch().go()
    assert sorted(growing.cluster.members()) == sorted(growing.old)


def test_an_unchanged_manifest_launches_nothing(growing: Growing) -> None:
    result = growing.launch().go(update=True)
    assert (result.run, sorted(result.nodes)) == (growing.record.run, sorted(growing.old))
    assert growing.show.lines == [f"run {growing.record.run} is what the manifest says: nothing to launch"]


def test_another_job_takes_the_place_of_the_run(growing: Growing, monkeypatch: pytest.MonkeyPatch) -> None:
    growing.want(2, name="other")
    growing.cluster.head_is_ready()
    made = growing.launch()

    def add(wanted: dict[str, int]) -> list[str]:
        assert growing.cluster.members() == []
        raise LaunchError("seen")

    monkeypatch.setattr(made, "_add", add)
    with pytest.raises(LaunchError, match="seen"):
        made.go(update=True)
    ended = Cluster(growing.cluster.stack, REGION).outcome(growing.record.run)
    assert ended is not None
    assert ended.state == "stopped"
    assert growing.current().run != growing.record.run


def test_a_growth_is_under_a_lease(growing: Growing, monkeypatch: pytest.MonkeyPatch) -> None:
    growing.want(4)
    made = growing.launch()
    seen: list[float | None] = []

    def add(wanted: dict[str, int]) -> list[str]:
        seen.append(growing.cluster.lease())
        raise LaunchError("seen")

    monkeypatch.setattr(made, "_add", add)
    with pytest.raises(LaunchError, match="seen"):
        made.go(update=True)
    assert seen[0] == pytest.approx(time.time() + 20 * 60, abs=20)


def test_what_a_killed_growth_left_goes_first(growing: Growing, monkeypatch: pytest.MonkeyPatch) -> None:
    left = growing.cluster.launch(2)
    growing.want(4)
    made = growing.launch()

    def add(wanted: dict[str, int]) -> list[str]:
        assert sorted(growing.cluster.members()) == sorted(growing.old)
        assert wanted == {"workers": 2}
        raise LaunchError("seen")

    monkeypatch.setattr(made, "_add", add)
    with pytest.raises(LaunchError, match="seen"):
        made.go(update=True)
    assert any("an earlier launch left them" in line and left[0] in line for line in growing.show.lines)


def test_a_run_that_has_lost_a_node_is_not_grown(growing: Growing) -> None:
    lost, _ = growing.old
    growing.cluster.autoscaling.terminate_instance_in_auto_scaling_group(
        InstanceId=lost, ShouldDecrementDesiredCapacity=True
    )
    growing.want(4)
    with pytest.raises(LaunchError, match=f"has lost {lost} and waits for others"):
        growing.launch().go(update=True)


def test_nodes_that_aws_will_not_end_are_named(
    growing: Growing, account: EmulatedAws, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "PAUSE_SECONDS", 0.0)
    growing.want(4)
    account.inject(clusters.room_for(account, 1))
    account.inject(Deny(operation="autoscaling:TerminateInstanceInAutoScalingGroup"))
    try:
        with pytest.raises(LaunchError, match=r"AWS would not end i-\w+, so they still run: .*--instance-id ID"):
            growing.launch().go(update=True)
    finally:
        account.clear_faults()
    assert not any("taken back" in line for line in growing.show.lines)


def test_a_longer_time_limit_does_not_end_the_run(growing: Growing) -> None:
    manifest = growing.cluster.manifest
    limits = manifest.limits.model_copy(update={"time_limit_minutes": 120.0})
    changed = manifest.model_copy(update={"limits": limits})
    growing.cluster.staging.write(MANIFEST, changed.model_dump_json().encode())
    result = growing.launch().go(update=True)
    assert result.run == growing.record.run
    assert growing.current().deadline == pytest.approx(growing.record.created + 120 * 60)
    assert sorted(growing.cluster.members()) == sorted(growing.old)
