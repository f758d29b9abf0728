"""`trainyard stop` and a later launch end a launch that waits for capacity."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rehearsal.aws.faults import Capacity
from rehearsal.aws.process import EmulatedAws
from rehearsal.aws.timing import Timing
from tests import clusters
from tests.conftest import REGION
from tests.trainyard.operations.conftest import RecordingDisplay
from trainyard.aws import tags
from trainyard.aws.reservations import find_reservations
from trainyard.models.layout import CURRENT_RUN, MANIFEST, RunLayout
from trainyard.models.run import Control
from trainyard.operations import capacity_search, pending_reservations
from trainyard.operations.cluster import Cluster
from trainyard.operations.errors import LaunchError
from trainyard.operations.launch import Launch
from trainyard.operations.launch_operation import LaunchOperation
from trainyard.operations.stack_reservations import cancel_reservations_of_stack
from trainyard.operations.stop import stop_run

pytestmark = pytest.mark.usefixtures("fast_polls")


@pytest.fixture
def cluster(account: EmulatedAws, monkeypatch: pytest.MonkeyPatch) -> Iterator[clusters.Cluster]:
    """A cluster whose launch waits for capacity."""
    monkeypatch.setattr(capacity_search, "FIRST_RETRY_SECONDS", 0.1)
    created = clusters.create_cluster(REGION, train=None, command=("train.py",))
    (group,) = created.manifest.groups
    limits = created.manifest.limits.model_copy(update={"capacity_wait_minutes": 0.1, "startup_timeout_minutes": 0.1})
    created.manifest = created.manifest.model_copy(update={"limits": limits})
    created.set_groups((group.model_copy(update={"reserve": True}),))
    created.write_head_ready_events()
    account.inject(Capacity(limit=0, instance_type=group.instance_type))
    yield created
    account.clear_faults()
    account.set_timing(Timing())
    cancel_reservations_of_stack(REGION, created.stack_tag, RecordingDisplay())


class WaitingDisplay(RecordingDisplay):
    """A display that calls a function once, before it returns from the first line that contains the text."""

    def __init__(self, act: Callable[[], object], text: str) -> None:
        super().__init__()
        self._acts, self._text = [act], text

    def line(self, subject: str, text: str) -> None:
        super().line(subject, text)
        if self._text in text and self._acts:
            self._acts.pop()()


def connect(cluster: clusters.Cluster) -> Cluster:
    return Cluster(cluster.stack, REGION)


def launch(cluster: clusters.Cluster, act: Callable[[], object], text: str = "attempt 1: none") -> None:
    """Launch; the launch fails after `act`, which is called after the displayed `text`, and adds no nodes."""
    with pytest.raises(LaunchError, match="was cancelled by trainyard stop or by a later launch"):
        Launch(connect(cluster), WaitingDisplay(act, text)).start()
    assert cluster.members() == []


def reservation_ids(cluster: clusters.Cluster) -> list[str]:
    return [each.id for each in find_reservations(REGION, {tags.STACK: cluster.stack_tag})]


class LaterLaunch:
    """A launch that replaces an earlier one and reserves capacity."""

    def __init__(self, cluster: clusters.Cluster) -> None:
        self.operation = LaunchOperation(connect(cluster), RecordingDisplay())

    def reserve(self) -> None:
        self.operation.pending.register()
        self.operation.reserve_capacity({"workers": 2})

    @property
    def reservations(self) -> list[str]:
        return list(self.operation.reservation_ids())


def test_stop_ends_a_launch_that_waits_for_capacity(cluster: clusters.Cluster) -> None:
    launch(cluster, lambda: stop_run(connect(cluster), RecordingDisplay()))
    assert reservation_ids(cluster) == []


def test_launch_keeps_the_reservation_of_the_launch_that_replaced_it(
    account: EmulatedAws, cluster: clusters.Cluster
) -> None:
    later = LaterLaunch(cluster)

    def reserve() -> None:
        account.clear_faults()
        later.reserve()

    launch(cluster, reserve)
    assert reservation_ids(cluster) == later.reservations != []


def test_launch_keeps_its_reservation_when_the_launch_that_replaced_it_uses_it(
    account: EmulatedAws, cluster: clusters.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_reservations, "POLL_SECONDS", 0.05)
    account.clear_faults()
    account.set_timing(Timing(reservation_pending_seconds=0.5))
    later = LaterLaunch(cluster)
    launch(cluster, later.reserve, "is pending: waiting until it is active")
    assert reservation_ids(cluster) == later.reservations != []


@pytest.mark.parametrize("phase", ["reserve_capacity", "write_record"])
def test_stop_before_the_nodes_are_added(
    account: EmulatedAws, cluster: clusters.Cluster, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    """Between the last attempt and the record, and between the record and the nodes."""
    account.clear_faults()
    operation = getattr(Launch, phase)

    def run_and_stop(*arguments: Any) -> None:
        operation(*arguments)
        stop_run(connect(cluster), RecordingDisplay())

    monkeypatch.setattr(Launch, phase, run_and_stop)
    launch(cluster, lambda: None)
    assert reservation_ids(cluster) == []


def test_stop_ends_a_scale_out_that_waits_for_capacity(account: EmulatedAws, cluster: clusters.Cluster) -> None:
    account.clear_faults()
    record, nodes = cluster.create_run_record(), cluster.launch_instances(2)
    layout, control = RunLayout(record.run), Control(attempt=1, nodes=tuple(nodes), started=True)
    for bucket, key in ((cluster.data, layout.record), (cluster.staging, CURRENT_RUN)):
        bucket.write(key, record.model_dump_json().encode())
    cluster.data.write(layout.control, control.model_dump_json().encode())
    (group,) = cluster.manifest.groups
    larger = cluster.manifest.model_copy(update={"groups": (group.model_copy(update={"nodes": 3}),)})
    cluster.staging.write(MANIFEST, larger.model_dump_json().encode())
    account.inject(clusters.capacity_limit(account, 0))

    def stop() -> None:
        stop_run(connect(cluster), RecordingDisplay())
        account.clear_faults()

    with pytest.raises(LaunchError, match=f"run {record.run} has stopped before nodes were added"):
        Launch(connect(cluster), WaitingDisplay(stop, "attempt 1: none")).start(update=True)
    assert cluster.members() == []
