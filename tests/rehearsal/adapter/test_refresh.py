"""Refresh: what `pulumi refresh` reads from the account after changes by hand, and how `pulumi up` reverts them."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest

from rehearsal.adapter.account import EmulatedAccount, ResourceRequest, handlers, select_handler
from rehearsal.adapter.command import Command
from rehearsal.adapter.deployment import Deployment, Resource
from rehearsal.adapter.errors import AdapterError
from rehearsal.adapter.refresh import refresh_inputs
from rehearsal.adapter.teardown import destroy
from rehearsal.aws.process import EmulatedAws
from tests.rehearsal.adapter.conftest import Deploy, start_account
from tests.rehearsal.adapter.managed_resource import ManagedResource
from tests.rehearsal.adapter.test_locked_results import deploy_locked

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
    ("aws:ec2/vpcEndpoint:VpcEndpoint", "policy", json.dumps(POLICY)),
    ("aws:ec2/launchTemplate:LaunchTemplate", "instanceType", "m5.large"),
    ("aws:autoscaling/group:Group", "maxSize", 9),
    ("aws:autoscaling/group:Group", "suspendedProcesses", []),
    ("aws:autoscaling/lifecycleHook:LifecycleHook", "heartbeatTimeout", 31),
    ("aws:iam/role:Role", "description", "changed"),
    ("aws:iam/rolePolicy:RolePolicy", "policy", json.dumps(POLICY)),
    ("aws:iam/policy:Policy", "policy", json.dumps(POLICY)),
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
        handler = HANDLERS[resource.type]
        if current is None:
            return None
        return refresh_inputs(handler.keys, resource.inputs, current.inputs, handler.unreported)

    def changes(self, resource: Resource) -> set[str]:
        """Return the inputs that a refresh changes or removes."""
        refreshed = self.refresh(resource)
        assert refreshed is not None
        keys = {*refreshed, *resource.inputs}
        return {key for key in keys if refreshed.get(key, ...) != resource.inputs.get(key, ...)}

    def revert(self, resource: Resource) -> None:
        """Update the resource from its refreshed inputs to those of the program, as the next update does."""
        refreshed = self.refresh(resource)
        assert refreshed is not None
        self.update(resource, refreshed, resource.inputs)
        assert self.refresh(resource) == resource.inputs

    def update(self, resource: Resource, old_inputs: Any, inputs: Any) -> None:
        """Update a resource in the account only: the inputs of the deployment stay."""
        request = replace(resource.request, inputs=inputs, old_inputs=old_inputs)
        self.account.update(request, Path(), lambda line: None)


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedAws]:
    """An account of these tests: other tests expect a single GPU stack in theirs."""
    with start_account(tmp_path_factory.mktemp("aws")) as running:
        yield running


@pytest.fixture(scope="module")
def stacks(aws: EmulatedAws) -> Stacks:
    account = EmulatedAccount(aws.region, run_commands=False)
    deployments = [Deploy()(f"refreshed-{name}", account, name) for name in STACKS]
    return Stacks(account, [*deployments, deploy_locked(aws)])


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
    assert stacks.changes(resource) == {"tags"}
    stacks.revert(resource)


@pytest.mark.parametrize(("kind", "key", "value"), CHANGES)
def test_input_changed_by_hand_is_shown_and_reverted(stacks: Stacks, kind: str, key: str, value: Any) -> None:
    resource = stacks.resource(kind, key)
    stacks.update(resource, resource.inputs, {**resource.inputs, key: value})
    assert stacks.changes(resource) == {key}
    stacks.revert(resource)


def test_other_target_of_a_route_is_shown_and_reverted(stacks: Stacks) -> None:
    route = stacks.resource("aws:ec2/route:Route", "natGatewayId")
    boto3.client("ec2").replace_route(
        RouteTableId=route.inputs["routeTableId"],
        DestinationCidrBlock=route.inputs["destinationCidrBlock"],
        GatewayId=stacks.resource("aws:ec2/internetGateway:InternetGateway").id,
    )
    assert "natGatewayId" in stacks.changes(route)
    stacks.revert(route)


@pytest.mark.parametrize("removed", ["placement", "metadataOptions", "userData"])
def test_version_of_a_launch_template_without_a_setting_is_shown(stacks: Stacks, removed: str) -> None:
    template = stacks.resource("aws:ec2/launchTemplate:LaunchTemplate", "placement")
    ec2, name = boto3.client("ec2"), removed[0].upper() + removed[1:]
    (version,) = ec2.describe_launch_template_versions(LaunchTemplateId=template.id, Versions=["$Latest"])[
        "LaunchTemplateVersions"
    ]
    data = {key: value for key, value in version["LaunchTemplateData"].items() if key != name}
    ec2.create_launch_template_version(LaunchTemplateId=template.id, LaunchTemplateData=data)
    assert stacks.changes(template) == {removed}
    stacks.revert(template)


def test_lifecycle_rule_of_another_form_has_only_inputs_that_the_handler_supports(stacks: Stacks) -> None:
    lifecycle = stacks.resource("aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration", "rules")
    filters = {"And": {"Prefix": "a", "Tags": [{"Key": "a", "Value": "b"}]}}
    rule = {"ID": "other", "Status": "Enabled", "Filter": filters, "Expiration": {"Days": 3}}
    boto3.client("s3").put_bucket_lifecycle_configuration(Bucket=lifecycle.id, LifecycleConfiguration={"Rules": [rule]})
    refreshed = stacks.refresh(lifecycle)
    assert refreshed is not None
    assert refreshed["rules"] == [{"id": "other", "status": "Enabled", "filter": {}, "expiration": {"days": 3}}]
    select_handler(HANDLERS, replace(lifecycle.request, inputs=refreshed))
    stacks.revert(lifecycle)


def test_disabled_key_is_no_error_of_a_refresh(account: EmulatedAccount) -> None:
    key = ManagedResource(account, "aws:kms/key:Key", description="data")
    boto3.client("kms").disable_key(KeyId=key.id)
    request = ResourceRequest(
        urn="u", type="aws:kms/key:Key", name="k", inputs=key.inputs, id=key.id, outputs=key.outputs
    )
    current = account.read(request, Path())
    assert current is not None
    assert current.inputs["description"] == "data"


def test_import_of_a_missing_bucket_names_it(account: EmulatedAccount) -> None:
    with pytest.raises(AdapterError, match="cannot import no-such-bucket: it does not exist"):
        ManagedResource(account, BUCKET, import_id="no-such-bucket")


def test_import_of_a_type_that_needs_inputs_is_refused(account: EmulatedAccount) -> None:
    request = ResourceRequest(urn="u", type="aws:ec2/route:Route", name="r", inputs={}, id="r-1")
    with pytest.raises(AdapterError, match="aws:ec2/route:Route r: the adapter does not support imports"):
        account.read(request, Path())


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
        ({"name": "{text"}, {"name": "{text"}),
        ({"name": ""}, {}),
    ],
)
def test_values_that_aws_treats_alike_are_no_difference(expected: dict[str, Any], current: dict[str, Any]) -> None:
    keys = {"policy": None, "limit": None, "groups": None, "name": None, "disk": {"size": None, "encrypted": None}}
    assert refresh_inputs(keys, expected, current) == expected


def test_repeated_items_of_a_list_are_counted() -> None:
    assert refresh_inputs({"groups": None}, {"groups": ["a", "a"]}, {"groups": ["a", "b"]}) == {"groups": ["a", "b"]}


def test_refreshed_list_of_objects_has_only_supported_inputs() -> None:
    current = {"rules": [{"id": "a", "owner": "123"}]}
    assert refresh_inputs({"rules": {"id": None}}, {"rules": []}, current) == {"rules": [{"id": "a"}]}
