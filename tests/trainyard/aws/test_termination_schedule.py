"""Schedules of EventBridge Scheduler that terminate the workers of a run and cancel its reservations."""

import time

import pytest

from rehearsal.aws.process import EmulatedAws
from tests import clusters
from tests.clusters import create_cluster
from tests.trainyard.operations.conftest import RecordingDisplay
from trainyard.aws.clients import client
from trainyard.aws.reservations import find_reservations
from trainyard.aws.termination_schedule import put_termination_schedules
from trainyard.operations.cluster import Cluster
from trainyard.operations.launch import Launch
from trainyard.operations.worker_groups import WorkerGroups

REGION = "us-east-1"


@pytest.fixture(scope="module")
def account(own_account: EmulatedAws) -> EmulatedAws:
    """An account whose clock no other test uses."""
    return own_account


@pytest.fixture
def cluster(account: EmulatedAws) -> clusters.Cluster:
    return create_cluster(REGION)


def put(cluster: clusters.Cluster, time: float, *reservations: str) -> None:
    termination = cluster.manifest.termination
    groups = [cluster.group]
    put_termination_schedules(REGION, termination.schedule_group, termination.role_arn, time, groups, reservations)


def sizes(cluster: clusters.Cluster) -> tuple[int, int]:
    """Return the maximum size and the desired capacity of the first group."""
    (group,) = cluster.autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=[cluster.group])[
        "AutoScalingGroups"
    ]
    return group["MaxSize"], group["DesiredCapacity"]


def test_workers_are_terminated_and_cannot_be_started_after_the_time(
    cluster: clusters.Cluster, account: EmulatedAws
) -> None:
    cluster.launch_instances(2)
    put(cluster, account.now() + 3600)
    account.advance_clock(3500)
    assert sizes(cluster) == (4, 2)
    account.advance_clock(200)
    assert sizes(cluster) == (0, 0)
    with pytest.raises(cluster.autoscaling.exceptions.ClientError, match="above max value 0"):
        cluster.autoscaling.set_desired_capacity(AutoScalingGroupName=cluster.group, DesiredCapacity=1)


def test_reservations_are_cancelled_at_the_time(cluster: clusters.Cluster, account: EmulatedAws) -> None:
    reservation = cluster.hold_capacity(1)
    put(cluster, account.now() + 3600, reservation)
    account.advance_clock(3700)
    assert find_reservations(REGION, {}) == []


def test_the_operator_moves_the_time(cluster: clusters.Cluster, account: EmulatedAws) -> None:
    put(cluster, account.now() + 60)
    put(cluster, account.now() + 7200)
    account.advance_clock(120)
    assert sizes(cluster) == (4, 0)
    account.advance_clock(7200)
    assert sizes(cluster) == (0, 0)


def test_a_launch_first_moves_the_schedules_of_the_run_before_it(
    cluster: clusters.Cluster, account: EmulatedAws
) -> None:
    put(cluster, account.now() + 90)
    launch = Launch(Cluster(cluster.stack, REGION), RecordingDisplay())
    launch.schedule_termination([])
    account.advance_clock(120)
    assert sizes(cluster) == (4, 0)


def test_the_next_launch_restores_the_maximum_size(cluster: clusters.Cluster, account: EmulatedAws) -> None:
    put(cluster, account.now() + 60)
    account.advance_clock(120)
    WorkerGroups(cluster.manifest).put_termination_schedules(account.now() + 3600, [])
    assert sizes(cluster) == (4, 0)


def test_a_role_without_permission_changes_nothing(cluster: clusters.Cluster, account: EmulatedAws) -> None:
    role = cluster.manifest.termination.role_arn.rpartition("/")[2]
    client("iam", REGION).delete_role_policy(RoleName=role, PolicyName="termination")
    try:
        put(cluster, account.now() + 60)
        account.advance_clock(120)
        assert sizes(cluster) == (4, 0)
        assert account.journal()[-2].error_code == "AccessDenied"
    finally:
        client("iam", REGION).delete_role(RoleName=role)


def test_schedule_of_a_role_that_the_scheduler_cannot_assume_is_refused(cluster: clusters.Cluster) -> None:
    scheduler, schedule_group = client("scheduler", REGION), cluster.manifest.termination.schedule_group
    with pytest.raises(scheduler.exceptions.ValidationException, match="assume the role"):
        put_termination_schedules(REGION, schedule_group, "arn:aws:iam::1:role/x", time.time(), ["g"])
