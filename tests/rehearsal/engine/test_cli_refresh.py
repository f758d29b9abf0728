"""`pulumi refresh` with the real Pulumi CLI: no change after `up`, and drift by hand. Skipped without the CLI."""

from collections import Counter
from collections.abc import Iterator

import boto3
import pytest

from rehearsal.engine.state import read_resources
from tests.rehearsal.engine.test_cli import OBJECT, Stack, create_stack, requires_cli

pytestmark = requires_cli
RULE, ROLE = "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule", "aws:iam/role:Role"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with create_stack(tmp_path_factory.mktemp("refreshed"), "local") as created:
        created.up()
        yield created


def refreshed(stack: Stack) -> Counter[str]:
    """Return how many resources of each type the refresh found changed or deleted.

    The log names a deleted resource `retained` if a destroy would retain it.
    """
    assert not stack.run("refresh").errors
    kinds = {"updated": "updated", "deleted": "deleted", "retained": "deleted"}
    return Counter(f"{kinds[event.kind]} {event.type}" for event in stack.events if event.kind in kinds)


def identifier(stack: Stack, kind: str) -> str:
    """Return the id of the first resource of a type."""
    resources = read_resources(stack.workspace.export_state(), {})
    return next(resource.id for resource in resources.values() if resource.type == kind)


def test_refresh_after_up_finds_no_difference(stack: Stack) -> None:
    assert refreshed(stack) == {}
    assert stack.up() == {}


def test_nodes_of_a_run_are_no_difference(stack: Stack) -> None:
    (workers,) = stack.exports()["groups"]
    boto3.client("autoscaling").set_desired_capacity(AutoScalingGroupName=workers, DesiredCapacity=2)
    assert refreshed(stack) == {}
    assert stack.up() == {}


def test_drift_is_shown_by_refresh_and_reverted_by_up(stack: Stack) -> None:
    boto3.client("iam").tag_role(RoleName=identifier(stack, ROLE), Tags=[{"Key": "owner", "Value": "me"}])
    assert refreshed(stack) == {f"updated {ROLE}": 1}
    assert stack.up() == {f"updated {ROLE}": 1}
    assert refreshed(stack) == {}


def test_preview_with_refresh_shows_the_drift_and_up_with_refresh_reverts_it(stack: Stack) -> None:
    (name,) = stack.exports()["groups"]
    boto3.client("autoscaling").update_auto_scaling_group(AutoScalingGroupName=name, MaxSize=7)
    stack.workspace.run("preview", "--refresh", "--diff")
    output = (stack.workspace.folder / "preview.log").read_text()
    assert "maxSize" in output
    assert "7 => 3" in output.replace(": ", " ")
    assert not stack.workspace.run("up", "--refresh", "--yes", "--skip-preview").errors
    groups = boto3.client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[name])
    assert groups["AutoScalingGroups"][0]["MaxSize"] == 3


def test_resources_deleted_by_hand_are_created_again(stack: Stack) -> None:
    resources = read_resources(stack.workspace.export_state(), {}).values()
    rule = next(resource for resource in resources if resource.type == RULE)
    boto3.client("ec2").revoke_security_group_egress(
        GroupId=rule.inputs["securityGroupId"], SecurityGroupRuleIds=[rule.id]
    )
    bucket, _, key = identifier(stack, OBJECT).partition("/")
    boto3.client("s3").delete_object(Bucket=bucket, Key=key)
    assert refreshed(stack) == {f"deleted {RULE}": 1, f"deleted {OBJECT}": 1}
    assert {f"created {RULE}", f"created {OBJECT}"} <= stack.up().keys()
    assert refreshed(stack) == {}
