"""Scaling activities of a group, and its retries of launches that EC2 rejected."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rehearsal.aws.faults import Capacity, Quota
from rehearsal.aws.process import EmulatedAws
from tests.rehearsal.aws.conftest import Client


@pytest.fixture(autouse=True)
def clean(aws: EmulatedAws) -> Iterator[None]:
    yield
    aws.clear_faults()


def activities(client: Client, name: str) -> list[dict[str, Any]]:
    pages = client("autoscaling").get_paginator("describe_scaling_activities")
    return [each for page in pages.paginate(AutoScalingGroupName=name) for each in page["Activities"]]


def members(client: Client, name: str) -> list[str]:
    activities = client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"][
        0
    ]
    return [each["InstanceId"] for each in activities["Instances"]]


def set_capacity(client: Client, name: str, count: int) -> None:
    client("autoscaling").set_desired_capacity(AutoScalingGroupName=name, DesiredCapacity=count)


def test_activities_are_listed_newest_first(client: Client, group: Callable[..., str]) -> None:
    name = group()
    set_capacity(client, name, 1)
    (created,) = members(client, name)
    set_capacity(client, name, 0)
    listed = [(each["Description"], each["StatusCode"]) for each in activities(client, name)]
    assert listed == [
        (f"Terminating EC2 instance: {created}", "Successful"),
        (f"Launching a new EC2 instance: {created}", "Successful"),
    ]


def test_partial_capacity_increase_records_the_failure(
    client: Client, aws: EmulatedAws, group: Callable[..., str]
) -> None:
    kind = "m7i.large"  # no other test launches it
    name = group({"InstanceType": kind})
    aws.inject(Capacity(limit=2, instance_type=kind))
    set_capacity(client, name, 3)
    assert len(members(client, name)) == 2
    newest = activities(client, name)[0]
    assert newest["StatusCode"] == "Failed"
    assert newest["StatusMessage"].startswith(f"We currently do not have sufficient {kind} capacity")
    assert newest["StatusMessage"].endswith("Launching EC2 instance failed.")


def test_failed_launch_is_retried_until_capacity_is_available(
    client: Client, aws: EmulatedAws, group: Callable[..., str]
) -> None:
    name = group()
    aws.inject(Quota(code="L-1216C47A", vcpus=0))
    set_capacity(client, name, 1)
    aws.advance_clock(100)
    failed = [each for each in activities(client, name) if each["StatusCode"] == "Failed"]
    assert len(failed) > 2
    assert "vCPU limit of 0" in failed[0]["StatusMessage"]
    aws.clear_faults()
    aws.advance_clock(31)
    assert len(members(client, name)) == 1


def test_failed_launch_is_not_retried_after_scale_in(
    client: Client, aws: EmulatedAws, group: Callable[..., str]
) -> None:
    name = group()
    aws.inject(Capacity(limit=0))
    set_capacity(client, name, 2)
    set_capacity(client, name, 0)
    count = len(activities(client, name))
    aws.advance_clock(600)
    assert len(activities(client, name)) == count
