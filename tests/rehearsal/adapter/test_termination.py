"""The termination schedules of a deployed stack: their role may end this stack only."""

import time
from collections.abc import Iterator
from typing import Any

import boto3
import pytest

from rehearsal.adapter.account import EmulatedAccount
from rehearsal.adapter.deployment import Deployment
from rehearsal.aws.process import EmulatedAws
from tests.rehearsal.adapter.conftest import Deploy, start_account
from trainyard.aws.termination_schedule import put_termination_schedules
from trainyard.models.manifest import Manifest

OBJECT = "aws:s3/bucketObjectv2:BucketObjectv2"


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedAws]:
    with start_account(tmp_path_factory.mktemp("aws")) as running:
        yield running


def deploy(aws: EmulatedAws, project: str) -> Manifest:
    stack: Deployment = Deploy(project=project)("same", EmulatedAccount(aws.region, run_commands=False), "local")
    content = stack.resource(OBJECT, "manifest").inputs["content"]
    manifest = Manifest.model_validate_json(content)
    start_nodes(manifest)
    return manifest


def start_nodes(manifest: Manifest) -> None:
    name = manifest.groups[0].autoscaling_group
    boto3.client("autoscaling").update_auto_scaling_group(AutoScalingGroupName=name, MaxSize=2, DesiredCapacity=2)


def capacity(manifest: Manifest) -> tuple[int, int]:
    name = manifest.groups[0].autoscaling_group
    described: dict[str, Any] = boto3.client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[name])
    (group,) = described["AutoScalingGroups"]
    return group["MaxSize"], group["DesiredCapacity"]


def test_the_role_ends_its_stack_and_not_the_same_stack_of_another_project(aws: EmulatedAws) -> None:
    own, other = deploy(aws, "trainyard"), deploy(aws, "other")
    groups = [manifest.groups[0].autoscaling_group for manifest in (own, other)]
    termination = own.termination
    put_termination_schedules(aws.region, termination.schedule_group, termination.role_arn, time.time() + 120, groups)
    aws.advance_clock(180)
    assert (capacity(own), capacity(other)) == ((0, 0), (2, 2))
