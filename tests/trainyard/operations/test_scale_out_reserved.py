"""Scale-out and replacement of nodes of a run whose nodes are in a capacity reservation."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from rehearsal.aws.process import EmulatedAws
from tests import clusters
from tests.conftest import REGION
from tests.trainyard.operations.conftest import RecordingDisplay
from trainyard.aws import tags
from trainyard.aws.reservations import CapacityReservation, find_reservations
from trainyard.models.layout import CURRENT_RUN, MANIFEST, RunLayout
from trainyard.models.run import Control, RunRecord
from trainyard.operations import stack_reservations
from trainyard.operations.cluster import Cluster
from trainyard.operations.errors import LaunchError
from trainyard.operations.launch import Launch, LaunchOptions
from trainyard.operations.reservations import GroupReservations
from trainyard.operations.worker_groups import WorkerGroups

pytestmark = pytest.mark.usefixtures("fast_polls")


class ReservedRun:
    """A run of two nodes in a reservation, and a manifest with four nodes."""

    def __init__(self) -> None:
        self.cluster, self.display = (
            clusters.create_cluster(REGION, train=None, command=("train.py",)),
            RecordingDisplay(),
        )
        group = self.cluster.manifest.groups[0].model_copy(update={"reserve": True})
        self.cluster.set_groups((group,))
        reservation = GroupReservations(self.cluster.manifest, self.display, "launch").reserve(group, 2, 1200)
        workers = WorkerGroups(self.cluster.manifest)
        nodes = workers.add_nodes({"workers": 2}, self.cluster.stack, self.display, {"workers": reservation})
        self.record = self.cluster.create_run_record().model_copy(update={"reservations": (reservation.id,)})
        layout = RunLayout(self.record.run)
        for bucket, key in ((self.cluster.data, layout.record), (self.cluster.staging, CURRENT_RUN)):
            bucket.write(key, self.record.model_dump_json().encode())
        control = Control(attempt=3, nodes=tuple(nodes), started=True)
        self.cluster.data.write(layout.control, control.model_dump_json().encode())
        self.cluster.set_groups((group.model_copy(update={"nodes": 4}),))

    def create_launch(self) -> Launch:
        cluster, options = Cluster(self.cluster.stack, REGION), LaunchOptions(replace_running=True)
        return Launch(cluster, self.display, options)

    def current_run(self) -> RunRecord:
        return RunRecord.model_validate_json(self.cluster.staging.read(CURRENT_RUN))

    def active(self) -> list[CapacityReservation]:
        return find_reservations(REGION, {tags.STACK: self.cluster.stack_tag})


@pytest.fixture
def run(account: EmulatedAws) -> Iterator[ReservedRun]:
    created = ReservedRun()
    yield created
    account.clear_faults()
    stack_reservations.cancel_reservations_of_stack(REGION, created.cluster.stack_tag, created.display)


def fail(*arguments: object, **options: object) -> list[str]:
    raise LaunchError("stopped by the test")


def test_failed_scale_out_restores_the_size_of_the_reservation(
    run: ReservedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = run.create_launch()
    monkeypatch.setattr(launch, "add_nodes", fail)
    with pytest.raises(LaunchError, match="stopped by the test"):
        launch.start(update=True)
    assert [each.instances for each in run.active()] == [2]
    assert run.current_run() == run.record


def test_size_is_restored_when_the_rollback_of_the_nodes_fails(
    run: ReservedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = run.create_launch()
    monkeypatch.setattr(launch, "add_nodes", fail)
    monkeypatch.setattr(launch.workers, "rollback", fail)
    with pytest.raises(LaunchError):
        launch.start(update=True)
    assert [each.instances for each in run.active()] == [2]


def test_record_names_the_reservation_before_nodes_are_added(run: ReservedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller extends the reservations that the record names."""
    stack_reservations.cancel_reservations_of_stack(REGION, run.cluster.stack_tag, run.display)
    launch, named = run.create_launch(), list[str]()

    def add_nodes(counts: Mapping[str, int]) -> list[str]:
        named.extend(run.current_run().reservations)
        assert named == [each.id for each in run.active()]
        return fail()

    monkeypatch.setattr(launch, "add_nodes", add_nodes)
    with pytest.raises(LaunchError, match="stopped by the test"):
        launch.start(update=True)
    assert named != list(run.record.reservations)


def test_wait_for_capacity_does_not_count_as_startup(run: ReservedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = run.create_launch()
    reserve, before = launch.reservations.reserve, launch.deadline.at

    def reserve_later(*arguments: Any) -> CapacityReservation:
        time.sleep(0.5)
        return reserve(*arguments)

    monkeypatch.setattr(launch.reservations, "reserve", reserve_later)
    monkeypatch.setattr(launch, "add_nodes", fail)
    with pytest.raises(LaunchError, match="stopped by the test"):
        launch.start(update=True)
    assert launch.deadline.at >= before + 0.5


def write_manifest(run: ReservedRun, **changes: str) -> None:
    """Write a manifest with another job, whose group has these changes."""
    manifest = run.cluster.manifest
    groups = tuple(group.model_copy(update=changes) for group in manifest.groups)
    job = manifest.job.model_copy(update={"name": "other"})
    other = manifest.model_copy(update={"job": job, "groups": groups})
    run.cluster.staging.write(MANIFEST, other.model_dump_json().encode())


def test_failure_of_the_head_does_not_stop_the_run_to_replace(run: ReservedRun) -> None:
    write_manifest(run)
    run.cluster.replace_head()
    run.cluster.write_head_failure_events("no disk")
    with pytest.raises(LaunchError, match="no disk"):
        run.create_launch().start(update=True)
    assert [each.id for each in run.active()] == list(run.record.reservations)
    assert Cluster(run.cluster.stack, REGION).outcome(run.record.run) is None


def test_failed_replacement_of_the_run_cancels_its_reservation(
    run: ReservedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_manifest(run, instance_digest="other")
    run.cluster.write_head_ready_events()
    launch = run.create_launch()
    monkeypatch.setattr(launch, "reserve_capacity", fail)
    with pytest.raises(LaunchError, match="stopped by the test"):
        launch.start(update=True)
    assert run.active() == []
    outcome = Cluster(run.cluster.stack, REGION).outcome(run.record.run)
    assert outcome is not None
    assert outcome.keeps_reservations  # one write: after a kill the controller either extends or keeps them


def test_reservation_of_a_run_that_was_not_stopped_is_kept(run: ReservedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    write_manifest(run, instance_digest="other")
    run.cluster.write_head_ready_events()
    launch = run.create_launch()

    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("trainyard.operations.launch.stop_run", interrupt)
    with pytest.raises(KeyboardInterrupt):
        launch.start(update=True)
    assert [each.id for each in run.active()] == list(run.record.reservations)
