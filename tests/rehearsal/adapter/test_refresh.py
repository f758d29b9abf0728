"""Refresh: what `pulumi refresh` reads from the account after changes by hand, and how `pulumi up` reverts them."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest

from rehearsal.adapter.account import EmulatedAccount, ResourceRequest, handlers
from rehearsal.adapter.command import Command
from rehearsal.adapter.deployment import Deployment, Resource
from rehearsal.adapter.refresh import refresh_inputs
from rehearsal.adapter.teardown import destroy
from rehearsal.aws.process import EmulatedAws
from tests.rehearsal.adapter.conftest import Deploy
from tests.rehearsal.adapter.managed_resource import ManagedResource

BUCKET, TOPIC = "aws:s3/bucket:Bucket", "aws:sns/topic:Topic"
SUBSCRIPTION = "aws:sns/topicSubscription:TopicSubscription"
STACKS = ("local", "a100-cluster", "spot-cluster")
EVENTS = {"autoImportPolicy": {"events": ["NEW"]}}
POLICY = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}]}
RULE = {"id": "changed", "status": "Enabled", "filter": {"prefix": ""}, "expiration": {"days": 3}}
HANDLERS = handlers(Command())
TAGGED = [kind for kind, handler in HANDLERS.items() if "tags" in handler.keys]
# Type -> an input that a user can change by hand, and its value.
CHANGES: list[tuple[str, str, Any]] = [
    ("aws:ec2/vpc:Vpc", "enableDnsHostnames", False),
    ("aws:ec2/subnet:Subnet", "mapPublicIpOnLaunch", True),
    ("aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule", "cidrIpv4", "10.0.0.0/8"),
    ("aws:ec2/launchTemplate:LaunchTemplate", "instanceType", "m5.large"),
    ("aws:autoscaling/group:Group", "maxSize", 9),
    ("aws:autoscaling/group:Group", "suspendedProcesses", []),
    ("aws:autoscaling/lifecycleHook:LifecycleHook", "heartbeatTimeout", 31),
    ("aws:iam/role:Role", "description", "changed"),
    ("aws:iam/rolePolicy:RolePolicy", "policy", json.dumps(POLICY)),
    ("aws:kms/key:Key", "enableKeyRotation", False),
    ("aws:cloudwatch/logGroup:LogGroup", "retentionInDays", 3),
    ("aws:cloudwatch/metricAlarm:MetricAlarm", "threshold", 7),
    ("aws:cloudwatch/metricAlarm:MetricAlarm", "okActions", []),
    ("aws:budgets/budget:Budget", "limitAmount", "1.0"),
    ("aws:budgets/budget:Budget", "notifications", []),
    ("aws:sns/topicPolicy:TopicPolicy", "policy", json.dumps(POLICY)),
    ("aws:s3/bucketVersioning:BucketVersioning", "versioningConfiguration", {"status": "Suspended"}),
    ("aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock", "blockPublicAcls", False),
    ("aws:s3/bucketPolicy:BucketPolicy", "policy", json.dumps(POLICY)),
    ("aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration", "rules", [RULE]),
    ("aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation", "s3", EVENTS),
]


class Stacks:
    """Deployed stacks, and the account that refreshes their resources."""

    def __init__(self, account: EmulatedAccount, deployments: list[Deployment]) -> None:
        self.account, self.deployments = account, deployments

    def resource(self, kind: str, key: str = "tags") -> Resource:
        """Return the first resource of a type whose program sets the input `key`."""
        resources = (each for deployment in self.deployments for each in deployment.resources_of_type(kind))
        return next(each for each in resources if key in each.inputs)

    def refresh(self, resource: Resource) -> dict[str, Any] | None:
        """Return the refreshed inputs of a resource; None when it does not exist."""
        current = self.account.read(resource.request, Path())
        keys = HANDLERS[resource.type].keys
        return None if current is None else refresh_inputs(keys, resource.inputs, current.inputs)

    def update(self, resource: Resource, old_inputs: Any, inputs: Any) -> None:
        """Update a resource in the account only: the inputs of the deployment stay."""
        request = replace(resource.request, inputs=inputs, old_inputs=old_inputs)
        self.account.update(request, Path(), lambda line: None)


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedAws]:
    """An account of these tests: other tests expect a single GPU stack in theirs."""
    with EmulatedAws.start(tmp_path_factory.mktemp("aws")) as running, pytest.MonkeyPatch.context() as patch:
        for key, value in running.environment().items():
            patch.setenv(key, value)
        yield running


@pytest.fixture(scope="module")
def stacks(aws: EmulatedAws) -> Stacks:
    account = EmulatedAccount(aws.region, run_commands=False)
    return Stacks(account, [Deploy()(f"refreshed-{name}", account, name) for name in STACKS])


def test_refresh_after_a_deployment_shows_no_difference(stacks: Stacks) -> None:
    resources = [each for deployment in stacks.deployments for each in deployment.existing_resources]
    assert HANDLERS.keys() - {each.type for each in resources} == {SUBSCRIPTION}
    assert [each.urn for each in resources if stacks.refresh(each) != each.inputs] == []


@pytest.mark.parametrize("kind", TAGGED)
def test_tag_added_by_hand_is_shown_and_reverted(stacks: Stacks, kind: str) -> None:
    resource = stacks.resource(kind)
    tags = resource.inputs["tags"]
    extra: Any = {"key": "owner", "value": "me", "propagateAtLaunch": True}
    changed = [*tags, extra] if isinstance(tags, list) else {**tags, "owner": "me"}
    stacks.update(resource, resource.inputs, {**resource.inputs, "tags": changed})
    refreshed = stacks.refresh(resource)
    assert refreshed is not None
    assert len(refreshed["tags"]) == len(tags) + 1
    assert {key for key in refreshed if refreshed[key] != resource.inputs.get(key)} == {"tags"}
    stacks.update(resource, refreshed, resource.inputs)
    assert stacks.refresh(resource) == resource.inputs


@pytest.mark.parametrize(("kind", "key", "value"), CHANGES)
def test_input_changed_by_hand_is_shown_and_reverted(stacks: Stacks, kind: str, key: str, value: Any) -> None:
    resource = stacks.resource(kind, key)
    stacks.update(resource, resource.inputs, {**resource.inputs, key: value})
    refreshed = stacks.refresh(resource)
    assert refreshed is not None
    assert {name for name in refreshed if refreshed[name] != resource.inputs.get(name)} == {key}
    stacks.update(resource, refreshed, resource.inputs)
    assert stacks.refresh(resource) == resource.inputs


def test_resource_deleted_by_hand_does_not_exist(aws: EmulatedAws, stacks: Stacks) -> None:
    resource = stacks.resource("aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule")
    boto3.client("ec2").revoke_security_group_egress(
        GroupId=resource.inputs["securityGroupId"], SecurityGroupRuleIds=[resource.id]
    )
    assert stacks.refresh(resource) is None
    resource.id, _ = stacks.account.create(resource.request, Path(), lambda line: None)
    assert stacks.refresh(resource) == resource.inputs


def test_subscription_is_refreshed_until_it_is_deleted(aws: EmulatedAws, account: EmulatedAccount) -> None:
    topic = ManagedResource(account, TOPIC)
    inputs = {"topic": topic.id, "protocol": "email", "endpoint": "me@example.org"}
    subscription = ManagedResource(account, SUBSCRIPTION, **inputs)
    request = ResourceRequest(urn="u", type=SUBSCRIPTION, name="s", inputs=inputs, id=subscription.id)
    current = account.read(request, Path())
    assert current is not None
    assert (current.inputs, current.outputs["pendingConfirmation"]) == (
        inputs,
        subscription.outputs["pendingConfirmation"],
    )
    topic.delete()
    assert account.read(request, Path()) is None


@pytest.mark.parametrize("name", STACKS)
def test_no_deleted_resource_is_refreshed(aws: EmulatedAws, stacks: Stacks, deploy: Deploy, name: str) -> None:
    deployment = deploy(f"deleted-{name}", stacks.account, name)
    resources = [each for each in deployment.existing_resources if each.type != Command.type]
    for each in destroy(deployment).retained:
        request = replace(each.request, inputs={"forceDestroy": True} if each.type == BUCKET else each.inputs)
        stacks.account.delete(request, Path(), lambda line: None)
    assert [each.urn for each in resources if stacks.refresh(each) is not None] == []


@pytest.mark.parametrize(
    ("expected", "current"),
    [
        ({"policy": '{"a": 1, "b": [2]}'}, {"policy": '{"b":[2],"a":1}'}),
        ({"limit": "500.00"}, {"limit": "500.0"}),
        ({"groups": ["sg-1", "sg-2"]}, {"groups": ["sg-2", "sg-1"]}),
        ({"disk": {"size": 8}}, {"disk": {"size": 8, "throughput": 125}}),
        ({"disk": {"encrypted": "true"}}, {"disk": {"encrypted": True}}),
        ({"name": "a"}, {"name": "a", "owner": "123"}),
    ],
)
def test_values_that_aws_treats_alike_are_no_difference(expected: dict[str, Any], current: dict[str, Any]) -> None:
    keys = {"policy": None, "limit": None, "groups": None, "name": None, "disk": {"size": None, "encrypted": None}}
    assert refresh_inputs(keys, expected, current) == expected


def test_refreshed_list_of_objects_has_only_supported_inputs() -> None:
    current = {"rules": [{"id": "a", "owner": "123"}]}
    assert refresh_inputs({"rules": {"id": None}}, {"rules": []}, current) == {"rules": [{"id": "a"}]}
