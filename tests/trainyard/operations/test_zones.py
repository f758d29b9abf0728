"""The launch without a reservation: zone by zone, and all nodes in one zone."""

from collections.abc import Iterator

import pytest

from rehearsal.aws.faults import Capacity, EventualConsistency
from rehearsal.aws.process import EmulatedAws
from rehearsal.aws.timing import Timing
from tests import clusters
from tests.conftest import REGION
from tests.trainyard.operations.conftest import RecordingDisplay
from trainyard.operations import scaling_activities
from trainyard.operations.cluster import Cluster
from trainyard.operations.errors import CapacityError
from trainyard.operations.worker_groups import WorkerGroups

pytestmark = pytest.mark.usefixtures("fast_polls")
ZONE_A, ZONE_B = "us-east-1a", "us-east-1b"


@pytest.fixture(scope="module")
def account(own_account: EmulatedAws) -> EmulatedAws:
    """An account of this file, because instances of other tests use capacity."""
    return own_account


@pytest.fixture
def cluster(account: EmulatedAws) -> Iterator[clusters.Cluster]:
    """A cluster with subnets in two zones, of which the first has capacity for one node."""
    created = clusters.create_cluster(REGION)
    account.inject(Capacity(limit=1, instance_type="c7i.xlarge", zone=ZONE_A))
    yield created
    created.autoscaling.set_desired_capacity(AutoScalingGroupName=created.group, DesiredCapacity=0)
    account.clear_faults()


def zones_of(cluster: clusters.Cluster) -> list[str]:
    """Zones of the members that are not terminating."""
    members = cluster.describe_group()["Instances"]
    return [each["AvailabilityZone"] for each in members if not each["LifecycleState"].startswith("Terminat")]


def test_all_nodes_are_in_the_first_zone_that_has_them(cluster: clusters.Cluster) -> None:
    display = RecordingDisplay()
    workers = WorkerGroups(Cluster(cluster.stack, REGION).manifest)
    assert len(workers.add_nodes({"workers": 2}, "run-1", display)) == 2
    assert zones_of(cluster) == [ZONE_B] * 2
    assert cluster.describe_group()["DesiredCapacity"] == 2
    assert f"workers {ZONE_A}: 1 of 2 nodes: InsufficientInstanceCapacity" in display.lines[0]


def test_partial_launch_is_terminated_although_no_response_contains_it_yet(
    cluster: clusters.Cluster, account: EmulatedAws, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its instances are pending, so that Auto Scaling refuses to terminate them at first."""
    monkeypatch.setattr(scaling_activities, "RETRY_DELAY_SECONDS", 0.05)
    account.set_timing(Timing(pending_seconds=1))
    account.inject(EventualConsistency(seconds=5))
    WorkerGroups(cluster.manifest).add_nodes({"workers": 2}, "run-1", RecordingDisplay())
    account.clear_faults()
    account.set_timing(Timing())
    assert zones_of(cluster) == [ZONE_B] * 2


def test_last_zone_with_fewer_nodes_ends_the_launch(cluster: clusters.Cluster, account: EmulatedAws) -> None:
    account.inject(Capacity(limit=1, instance_type="c7i.xlarge", zone=ZONE_B))
    workers, display = WorkerGroups(Cluster(cluster.stack, REGION).manifest), RecordingDisplay()
    with pytest.raises(CapacityError, match=f"1 of 2 requested nodes.*{ZONE_A}.*{ZONE_B}"):
        workers.add_nodes({"workers": 2}, "run-1", display)
    assert workers.rollback(display) == []
    assert zones_of(cluster) == []
