"""A launch for a Capacity Block that starts later: AWS starts the nodes, the controller the job."""

import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
from botocore.exceptions import ClientError

from rehearsal.aws.faults import Deny, PaymentFailure
from rehearsal.aws.process import EmulatedAws
from rehearsal.aws.seed_models import AccountSeed, SeedReservation
from rehearsal.aws.timing import Timing
from tests import clusters
from tests.conftest import REGION
from tests.trainyard.operations.conftest import RecordingDisplay
from trainyard.aws.autoscaling import set_launch_target
from trainyard.models.layout import CURRENT_RUN, RunLayout
from trainyard.models.run import LaunchResult, Outcome, RunRecord
from trainyard.operations import stop
from trainyard.operations.cluster import Cluster
from trainyard.operations.errors import CapacityError, LaunchError
from trainyard.operations.launch import Launch, LaunchOptions
from trainyard.operations.status import format_status, read_status
from trainyard.operations.stop import stop_run
from trainyard.operations.worker_groups import WorkerGroups

DAY, PAYMENT_SECONDS = 86400.0, 600.0
_numbers = count(0xD1000)
pytestmark = pytest.mark.usefixtures("fast_polls")


@pytest.fixture(scope="module")
def account(own_account: EmulatedAws) -> EmulatedAws:
    """An account of this file, because the tests advance its clock."""
    return own_account


@pytest.fixture
def cluster(account: EmulatedAws) -> Iterator[clusters.Cluster]:
    created = clusters.create_cluster(REGION, train=None, command=("train.py",))
    set_block(account, created, account.now() + DAY)
    created.write_head_ready_events()
    yield created
    account.clear_faults()


@pytest.fixture
def unpaid(account: EmulatedAws, cluster: clusters.Cluster) -> Iterator[str]:
    """Let the manifest name a Capacity Block with a payment that takes PAYMENT_SECONDS. Returns its reservation."""
    account.set_timing(Timing(block_payment_seconds=PAYMENT_SECONDS))
    yield set_block(account, cluster, account.now() + DAY, paid=False)
    account.set_timing(Timing())


def set_block(
    account: EmulatedAws, cluster: clusters.Cluster, start: float, nodes: int = 2, *, paid: bool = True
) -> str:
    """Let the manifest name a Capacity Block that starts at `start`. Returns its reservation."""
    name, start = f"cr-{next(_numbers):017x}", float(int(start))
    block = SeedReservation(id=name, instance_type="c7i.xlarge", zone="us-east-1a", count=4, block=True, start=start)
    block = block.model_copy(update={"end": start + DAY, "paid": paid})
    account.seed(AccountSeed(region=REGION, reservations=(block,)))
    (group,) = cluster.manifest.groups
    changes = {
        "market": "capacity-block",
        "reservation": name,
        "nodes": nodes,
        "image": clusters.ubuntu_image_id(REGION),
        "capacity_start_time": start,
        "capacity_end_time": start + DAY - 2400,
    }
    cluster.set_groups((group.model_copy(update=changes),))
    return name


def launch(cluster: clusters.Cluster, update: bool = False) -> tuple[LaunchResult, RecordingDisplay]:
    display = RecordingDisplay()
    return Launch(Cluster(cluster.stack, REGION), display, LaunchOptions(wait=False)).start(update), display


def actions(cluster: clusters.Cluster) -> dict[str, tuple[float, int]]:
    """Return scheduled action -> start and desired capacity."""
    described = cluster.autoscaling.describe_scheduled_actions(AutoScalingGroupName=cluster.group)
    return {
        action["ScheduledActionName"]: (action["StartTime"].timestamp(), action["DesiredCapacity"])
        for action in described["ScheduledUpdateGroupActions"]
    }


def current_run(cluster: clusters.Cluster) -> RunRecord:
    return RunRecord.model_validate_json(cluster.staging.read(CURRENT_RUN))


def outcome_of(cluster: clusters.Cluster, run: str) -> Outcome | None:
    content = cluster.data.find(RunLayout(run).outcome)
    return None if content is None else Outcome.model_validate_json(content)


def start_of(cluster: clusters.Cluster) -> float:
    start = cluster.manifest.capacity_start_time
    assert start is not None
    return start


def test_later_start_is_scheduled_with_run_and_lease(cluster: clusters.Cluster) -> None:
    result, display = launch(cluster)
    start, record = start_of(cluster), current_run(cluster)
    assert (result.state, result.scheduled_start, result.nodes, result.run) == ("scheduled", start, (), record.run)
    lease_minutes = cluster.manifest.limits.lease_minutes
    assert actions(cluster) == {
        "trainyard-start": (start, 2),
        "trainyard-lease": (start + lease_minutes * 60, 0),
    }
    assert cluster.members() == []
    assert any(f"{record.run} is scheduled for" in line for line in display.lines)


def test_deadlines_count_from_the_scheduled_start(cluster: clusters.Cluster) -> None:
    launch(cluster)
    record = current_run(cluster)
    assert record.deadline == start_of(cluster) + record.limits.time_limit_minutes * 60


def test_status_shows_the_scheduled_start(cluster: clusters.Cluster) -> None:
    launch(cluster)
    status = read_status(Cluster(cluster.stack, REGION), None)
    assert status.scheduled_start_time == start_of(cluster)
    lines = "\n".join(format_status(status, cluster.stack))
    assert ": scheduled" in lines
    assert "AWS starts 2 nodes at" in lines
    WorkerGroups(cluster.manifest).cancel_scheduled_start()
    assert f"trainyard launch -s {cluster.stack}" in "\n".join(
        format_status(read_status(Cluster(cluster.stack, REGION), None), cluster.stack)
    )


def test_stop_cancels_the_scheduled_start(cluster: clusters.Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop, "POLL_SECONDS", 0.05)
    run = launch(cluster)[0].run
    stop_run(Cluster(cluster.stack, REGION), RecordingDisplay())
    assert "trainyard-start" not in actions(cluster)
    outcome = outcome_of(cluster, run)
    assert outcome is not None
    assert outcome.state == "stopped"


@pytest.mark.parametrize("update", [False, True], ids=["launch", "pulumi-up"])
def test_second_launch_reschedules_the_same_run(account: EmulatedAws, cluster: clusters.Cluster, update: bool) -> None:
    run = launch(cluster)[0].run
    block = set_block(account, cluster, account.now() + 2 * DAY, nodes=3)
    result, _ = launch(cluster, update)
    record = current_run(cluster)
    assert (result.run, result.state) == (run, "scheduled")
    assert actions(cluster)["trainyard-start"] == (start_of(cluster), 3)
    assert (record.nodes, record.scheduled_start, record.block_reservation_ids) == (3, start_of(cluster), (block,))


@pytest.mark.parametrize("update", [False, True], ids=["launch", "pulumi-up"])
def test_changed_job_replaces_a_scheduled_run(
    cluster: clusters.Cluster, monkeypatch: pytest.MonkeyPatch, update: bool
) -> None:
    monkeypatch.setattr(stop, "POLL_SECONDS", 0.05)
    first = launch(cluster)[0].run
    job = cluster.manifest.job.model_copy(update={"command": ("other.py",)})
    cluster.manifest = cluster.manifest.model_copy(update={"job": job})
    cluster.set_groups(cluster.manifest.groups)
    second = launch(cluster, update)[0].run
    assert second != first
    assert outcome_of(cluster, first) is not None
    assert actions(cluster)["trainyard-start"] == (start_of(cluster), 2)


def test_aws_starts_the_nodes_without_the_operator(account: EmulatedAws, cluster: clusters.Cluster) -> None:
    launch(cluster)
    account.advance_clock(start_of(cluster) - account.now() - 5)
    assert cluster.describe_group()["DesiredCapacity"] == 0
    account.advance_clock(6)
    assert cluster.describe_group()["DesiredCapacity"] == 2


def test_launch_schedules_a_block_with_a_pending_payment(
    account: EmulatedAws, cluster: clusters.Cluster, unpaid: str
) -> None:
    result, display = launch(cluster)
    assert result.state == "scheduled"
    assert any(f"{unpaid} is payment-pending" in line and "12 hours" in line for line in display.lines)


def test_launch_names_a_block_with_a_failed_payment(
    account: EmulatedAws, cluster: clusters.Cluster, unpaid: str
) -> None:
    account.inject(PaymentFailure())
    account.advance_clock(PAYMENT_SECONDS + 1)
    text = f"{unpaid} is payment-failed: AWS did not receive .*trainyard blocks -s {cluster.stack}"
    with pytest.raises(CapacityError, match=text):
        launch(cluster)
    assert actions(cluster) == {}


STEPS = ("write_record", "put_lease", "put_scheduled_start")


@pytest.mark.parametrize("step", STEPS)
def test_launch_that_is_killed_starts_nothing_without_a_run(
    cluster: clusters.Cluster, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Killed before or after each step: a scheduled start exists only with the current run and its lease."""
    observed: list[tuple[bool, bool, bool]] = []

    def observe() -> None:
        scheduled = actions(cluster)
        has_run = cluster.staging.find(CURRENT_RUN) is not None
        observed.append(("trainyard-start" in scheduled, has_run, "trainyard-lease" in scheduled))

    def observing(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            observe()
            result = function(*arguments)
            observe()
            return result

        return call

    owner: Any = Launch if step == "write_record" else WorkerGroups
    monkeypatch.setattr(owner, step, observing(getattr(owner, step)))
    launch(cluster)
    assert len(observed) == 2
    assert all(has_run and has_lease for starts, has_run, has_lease in observed if starts)


def test_scheduled_nodes_do_not_use_the_reservation_and_subnet_of_an_earlier_launch(cluster: clusters.Cluster) -> None:
    subnet, other = cluster.manifest.groups[0].subnets
    set_launch_target(REGION, cluster.group, other.id, "cr-0123456789abcdef0")
    launch(cluster)
    description = cluster.describe_group()
    assert description["VPCZoneIdentifier"] == subnet.id
    assert "CapacityReservationTarget" not in description["CapacityReservationSpecification"]


@pytest.mark.parametrize("operation", ["PutScheduledUpdateGroupAction"])
def test_failed_schedule_ends_the_run(account: EmulatedAws, cluster: clusters.Cluster, operation: str) -> None:
    account.inject(Deny(operation=f"autoscaling:{operation}"))
    with pytest.raises(ClientError):
        launch(cluster)
    account.clear_faults()
    assert "trainyard-start" not in actions(cluster)
    assert outcome_of(cluster, current_run(cluster).run) is not None


def test_interrupted_schedule_has_no_scheduled_start(
    cluster: clusters.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = WorkerGroups.put_scheduled_start

    def interrupt(self: WorkerGroups, start: float) -> None:
        put(self, start)
        raise KeyboardInterrupt

    monkeypatch.setattr(WorkerGroups, "put_scheduled_start", interrupt)
    with pytest.raises(KeyboardInterrupt):
        launch(cluster)
    assert "trainyard-start" not in actions(cluster)
    assert outcome_of(cluster, current_run(cluster).run) is not None


def test_launch_reports_the_software_installed_in_paid_time(cluster: clusters.Cluster) -> None:
    _, display = launch(cluster)
    (line,) = [line for line in display.lines if "is not baked" in line]
    assert "the Python environment" in line
    assert f"trainyard bake -s {cluster.stack}" in line


def test_missing_image_is_reported_before_the_start(cluster: clusters.Cluster) -> None:
    (group,) = cluster.manifest.groups
    cluster.set_groups((group.model_copy(update={"image": "ami-0123456789abcdef0"}),))
    with pytest.raises(LaunchError, match="ami-0123456789abcdef0 is missing"):
        launch(cluster)
    assert actions(cluster) == {}


def test_head_is_checked_before_the_start(cluster: clusters.Cluster) -> None:
    cluster.replace_head()
    cluster.write_head_failure_events("disk full")
    with pytest.raises(LaunchError, match="disk full"):
        launch(cluster)
    assert actions(cluster) == {}


def test_run_with_starting_nodes_continues(account: EmulatedAws, cluster: clusters.Cluster) -> None:
    run = launch(cluster)[0].run
    record = current_run(cluster).model_copy(update={"scheduled_start": time.time() - 5})
    cluster.staging.write(CURRENT_RUN, record.model_dump_json().encode())
    result, display = launch(cluster, update=True)
    assert result.run == run
    assert any("is starting" in line for line in display.lines)
    assert outcome_of(cluster, run) is None
