"""Updates of existing resources. Each test reads the updated resource from the account's API."""

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest

from rehearsal.adapter.account import EmulatedAccount, ResourceRequest
from rehearsal.adapter.command import Command
from rehearsal.adapter.deployment import Deployment, Resource
from rehearsal.adapter.errors import RequestFailedError
from rehearsal.aws.process import EmulatedAws
from rehearsal.aws.timing import Timing
from tests.rehearsal.adapter.conftest import Deploy

GROUP, TEMPLATE = "aws:autoscaling/group:Group", "aws:ec2/launchTemplate:LaunchTemplate"
WORKERS, HEAD = "workers-ubuntu-24.04", "head-ubuntu-24.04"  # launch templates
Change = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def stack(aws: EmulatedAws) -> Deployment:
    """A deployed stack that these tests change."""
    return Deploy()("changing", EmulatedAccount(aws.region, run_commands=False), "local")


@pytest.fixture
def change(account: EmulatedAccount, stack: Deployment, tmp_path: Path) -> Change:
    """Return a function that updates inputs of a resource, and returns the changed outputs."""

    def apply(type_: str, name: str, **new_inputs: Any) -> dict[str, Any]:
        existing = stack.resource(type_, name)
        old_inputs = {**existing.inputs}
        request = replace(existing.request, inputs={**old_inputs, **new_inputs}, old_inputs=old_inputs)
        changed = account.update(request, tmp_path, lambda line: None)
        existing.inputs = request.inputs
        existing.outputs = {**existing.outputs, **changed}
        return changed

    return apply


def tag_dict(tags: list[dict[str, str]]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in tags}


@pytest.mark.parametrize(
    ("type_", "name"),
    [
        ("aws:ec2/vpc:Vpc", "network-vpc"),
        ("aws:ec2/subnet:Subnet", "network-private"),
        ("aws:ec2/internetGateway:InternetGateway", "network-internet"),
        ("aws:ec2/eip:Eip", "network-nat-address"),
        ("aws:ec2/natGateway:NatGateway", "network-nat"),
        ("aws:ec2/routeTable:RouteTable", "network-private"),
        ("aws:ec2/vpcEndpoint:VpcEndpoint", "endpoints-s3"),
        ("aws:ec2/securityGroup:SecurityGroup", "security-nodes"),
        ("aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule", "security-nodes-to-internet"),
        (TEMPLATE, WORKERS),
        ("aws:ec2/placementGroup:PlacementGroup", "placement-cluster"),
    ],
)
def test_tags_of_ec2_resources_are_updated(stack: Deployment, change: Change, type_: str, name: str) -> None:
    resource = stack.resource(type_, name)
    resource_id = resource.outputs.get("placementGroupId", resource.id)
    before = dict(resource.inputs["tags"])
    change(type_, resource.name, tags={**before, "Name": "renamed", "extra": "1"})
    change(type_, resource.name, tags={**before, "Name": "renamed"})
    result = boto3.client("ec2").describe_tags(Filters=[{"Name": "resource-id", "Values": [resource_id]}])["Tags"]
    tags = {tag["Key"]: tag["Value"] for tag in result if not tag["Key"].startswith("aws:")}
    assert tags == {**before, "Name": "renamed"}


def test_vpc_attribute_is_updated(stack: Deployment, change: Change) -> None:
    change("aws:ec2/vpc:Vpc", "network-vpc", enableDnsHostnames=False)
    vpc = stack.resource("aws:ec2/vpc:Vpc", "network-vpc").id
    response = boto3.client("ec2").describe_vpc_attribute(VpcId=vpc, Attribute="enableDnsHostnames")
    assert response["EnableDnsHostnames"]["Value"] is False


def test_public_addresses_of_a_subnet_are_enabled(stack: Deployment, change: Change) -> None:
    change("aws:ec2/subnet:Subnet", "network-private", mapPublicIpOnLaunch=True)
    (response,) = boto3.client("ec2").describe_subnets(
        SubnetIds=[stack.resource("aws:ec2/subnet:Subnet", "network-private").id]
    )["Subnets"]
    assert response["MapPublicIpOnLaunch"] is True


def test_target_of_a_route_is_replaced(stack: Deployment, change: Change) -> None:
    gateway = stack.resource("aws:ec2/internetGateway:InternetGateway", "network-internet").id
    route = stack.resource("aws:ec2/route:Route", "network-private")
    nat = route.inputs["natGatewayId"]
    tables = [route.inputs["routeTableId"]]

    def default_route() -> dict[str, Any]:
        (response,) = boto3.client("ec2").describe_route_tables(RouteTableIds=tables)["RouteTables"]
        return next(entry for entry in response["Routes"] if entry.get("DestinationCidrBlock") == "0.0.0.0/0")

    route.inputs = {key: value for key, value in route.inputs.items() if key != "natGatewayId"}
    change("aws:ec2/route:Route", "network-private", gatewayId=gateway)
    assert default_route()["GatewayId"] == gateway
    route.inputs = {key: value for key, value in route.inputs.items() if key != "gatewayId"}
    change("aws:ec2/route:Route", "network-private", natGatewayId=nat)
    assert default_route()["NatGatewayId"] == nat


def test_route_tables_of_an_endpoint_are_updated(stack: Deployment, change: Change) -> None:
    endpoint = stack.resource("aws:ec2/vpcEndpoint:VpcEndpoint", "endpoints-s3")
    tables = {
        stack.resource("aws:ec2/routeTable:RouteTable", name).id for name in ("network-private", "network-public")
    }
    change(endpoint.type, "endpoints-s3", routeTableIds=sorted(tables))
    (response,) = boto3.client("ec2").describe_vpc_endpoints(VpcEndpointIds=[endpoint.id])["VpcEndpoints"]
    assert set(response["RouteTableIds"]) == tables


def test_changed_launch_template_has_a_new_default_version(stack: Deployment, change: Change) -> None:
    template = stack.resource(TEMPLATE, WORKERS)
    user_data = base64.b64encode(b"#cloud-config\n# other\n").decode()
    assert change(template.type, template.name, userData=user_data) == {"latestVersion": 2, "defaultVersion": 2}
    response = boto3.client("ec2").describe_launch_template_versions(
        LaunchTemplateId=template.id, Versions=["$Default"]
    )["LaunchTemplateVersions"]
    data = response[0]["LaunchTemplateData"]
    assert data["UserData"] == user_data
    assert data["MetadataOptions"]["HttpTokens"] == "required"


def test_launch_template_with_changed_tags_has_no_new_version(stack: Deployment, change: Change) -> None:
    assert change(TEMPLATE, WORKERS, tags={"a": "b"}) == {}


def test_autoscaling_group_is_updated(stack: Deployment, change: Change) -> None:
    client, group = boto3.client("autoscaling"), stack.resource(GROUP, "workers")
    tags = group.inputs["tags"][1:]
    change(
        group.type,
        "workers",
        maxSize=4,
        launchTemplate={**group.inputs["launchTemplate"], "version": "1"},
        healthCheckGracePeriod=77,
        suspendedProcesses=["Terminate"],
        tags=[*tags, {"key": "extra", "value": "1", "propagateAtLaunch": True}],
    )
    (response,) = client.describe_auto_scaling_groups(AutoScalingGroupNames=[group.id])["AutoScalingGroups"]
    assert (response["MaxSize"], response["DesiredCapacity"], response["HealthCheckGracePeriod"]) == (4, 0, 77)
    assert response["LaunchTemplate"]["Version"] == "1"
    assert [entry["ProcessName"] for entry in response["SuspendedProcesses"]] == ["Terminate"]
    assert {tag["Key"] for tag in response["Tags"]} == {*(tag["key"] for tag in tags), "extra"}


def members(group: Resource) -> dict[str, str]:
    """Return the instances of a group that do not terminate -> version of their launch template."""
    response = boto3.client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[group.id])
    instances = response["AutoScalingGroups"][0]["Instances"]
    return {
        each["InstanceId"]: each["LaunchTemplate"]["Version"]
        for each in instances
        if not each["LifecycleState"].startswith("Terminating")
    }


def test_new_version_of_the_launch_template_replaces_the_head(stack: Deployment, change: Change) -> None:
    group = stack.resource(GROUP, "head")
    earlier = members(group)
    change(GROUP, "head", tags=[*group.inputs["tags"], {"key": "extra", "value": "1", "propagateAtLaunch": True}])
    assert members(group) == earlier
    change(TEMPLATE, HEAD, userData=base64.b64encode(b"#cloud-config\n# other\n").decode())
    change(GROUP, "head", launchTemplate={**group.inputs["launchTemplate"], "version": "2"})
    assert list(members(group).values()) == ["2"]
    assert not members(group).keys() & earlier.keys()


def test_another_update_cancels_the_instance_refresh_in_progress(
    aws: EmulatedAws, stack: Deployment, change: Change
) -> None:
    group = stack.resource(GROUP, "head")
    aws.set_timing(Timing(pending_seconds=3600.0))
    try:
        for version in ("1", "2"):
            change(GROUP, "head", launchTemplate={**group.inputs["launchTemplate"], "version": version})
        assert list(members(group).values()) == ["2"]
    finally:
        aws.set_timing(Timing())
        aws.advance_clock(3600.0)


def test_heartbeat_timeout_of_a_lifecycle_hook_is_updated(stack: Deployment, change: Change) -> None:
    hook = stack.resource("aws:autoscaling/lifecycleHook:LifecycleHook", "workers-drain")
    change(hook.type, hook.name, heartbeatTimeout=240)
    response = boto3.client("autoscaling").describe_lifecycle_hooks(
        AutoScalingGroupName=hook.inputs["autoscalingGroupName"]
    )
    assert [(entry["LifecycleHookName"], entry["HeartbeatTimeout"]) for entry in response["LifecycleHooks"]] == [
        (hook.id, 240)
    ]


def test_tags_of_a_bucket_are_updated(stack: Deployment, change: Change) -> None:
    bucket = stack.resource("aws:s3/bucket:Bucket", "trainyard-staging")
    tags = {**bucket.inputs["tags"], "Name": "renamed"}
    change(bucket.type, bucket.name, tags=tags)
    assert tag_dict(boto3.client("s3").get_bucket_tagging(Bucket=bucket.id)["TagSet"]) == tags


SETTINGS: dict[str, tuple[dict[str, Any], str, Callable[[Any], Any], Any]] = {
    "bucketVersioning:BucketVersioning": (
        {"versioningConfiguration": {"status": "Suspended"}},
        "get_bucket_versioning",
        lambda response: response["Status"],
        "Suspended",
    ),
    "bucketPublicAccessBlock:BucketPublicAccessBlock": (
        {"blockPublicAcls": False},
        "get_public_access_block",
        lambda response: response["PublicAccessBlockConfiguration"]["BlockPublicAcls"],
        False,
    ),
    "bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration": (
        {"rules": [{"applyServerSideEncryptionByDefault": {"sseAlgorithm": "AES256"}, "bucketKeyEnabled": False}]},
        "get_bucket_encryption",
        lambda response: response["ServerSideEncryptionConfiguration"]["Rules"][0]["BucketKeyEnabled"],
        False,
    ),
    "bucketLifecycleConfiguration:BucketLifecycleConfiguration": (
        {"rules": [{"id": "other", "status": "Enabled", "filter": {"prefix": ""}, "expiration": {"days": 3}}]},
        "get_bucket_lifecycle_configuration",
        lambda response: [(rule["ID"], rule["Expiration"]["Days"]) for rule in response["Rules"]],
        [("other", 3)],
    ),
    "bucketPolicy:BucketPolicy": (
        {"policy": json.dumps({"Version": "2012-10-17", "Statement": []})},
        "get_bucket_policy",
        lambda response: json.loads(response["Policy"])["Statement"],
        [],
    ),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_setting_of_a_bucket_is_updated(stack: Deployment, change: Change, setting: str) -> None:
    new_inputs, operation, read_response, expected = SETTINGS[setting]
    bucket = stack.resource(f"aws:s3/{setting}", "data").inputs["bucket"]
    change(f"aws:s3/{setting}", "data", **new_inputs)
    assert read_response(getattr(boto3.client("s3"), operation)(Bucket=bucket)) == expected


def test_changed_object_has_new_content_and_etag(stack: Deployment, change: Change) -> None:
    s3_object = stack.resource("aws:s3/bucketObjectv2:BucketObjectv2", "manifest")
    before = s3_object.outputs["etag"]
    assert change(s3_object.type, "manifest", content="other")["etag"] != before
    s3 = boto3.client("s3")
    assert s3.get_object(Bucket=s3_object.inputs["bucket"], Key=s3_object.inputs["key"])["Body"].read() == b"other"


def test_object_with_changed_tags_is_not_written_again(stack: Deployment, change: Change) -> None:
    s3_object = stack.resource("aws:s3/bucketObjectv2:BucketObjectv2", "archives-bundle")
    s3, target = boto3.client("s3"), {"Bucket": s3_object.inputs["bucket"], "Key": s3_object.inputs["key"]}
    before = s3.head_object(**target)["LastModified"]
    assert change(s3_object.type, "archives-bundle", tags={"a": "b"}) == {}
    assert tag_dict(s3.get_object_tagging(**target)["TagSet"]) == {"a": "b"}
    assert s3.head_object(**target)["LastModified"] == before


def test_trust_policy_and_tags_of_a_role_are_updated(stack: Deployment, change: Change) -> None:
    role = stack.resource("aws:iam/role:Role", "identity-head")
    principal = {"Service": "ssm.amazonaws.com"}
    statement = {"Effect": "Allow", "Principal": principal, "Action": "sts:AssumeRole"}
    trust = {"Version": "2012-10-17", "Statement": [statement]}
    change(role.type, "identity-head", assumeRolePolicy=json.dumps(trust), tags={"a": "b"})
    response = boto3.client("iam").get_role(RoleName=role.id)["Role"]
    assert (response["AssumeRolePolicyDocument"], tag_dict(response["Tags"])) == (trust, {"a": "b"})


def test_inline_policy_of_a_role_is_updated_under_the_same_name(stack: Deployment, change: Change) -> None:
    policy = stack.resource("aws:iam/rolePolicy:RolePolicy", "identity-workers")
    document = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}]}
    change(policy.type, "identity-workers", policy=json.dumps(document))
    role, _, name = policy.id.partition(":")
    iam = boto3.client("iam")
    assert iam.list_role_policies(RoleName=role)["PolicyNames"] == [name]
    assert iam.get_role_policy(RoleName=role, PolicyName=name)["PolicyDocument"] == document


def test_role_of_an_instance_profile_is_replaced(stack: Deployment, change: Change) -> None:
    profile = stack.resource("aws:iam/instanceProfile:InstanceProfile", "identity-head")
    before, other = profile.inputs["role"], stack.resource("aws:iam/role:Role", "identity-workers").id

    def roles() -> list[str]:
        response = boto3.client("iam").get_instance_profile(InstanceProfileName=profile.id)["InstanceProfile"]
        return [entry["RoleName"] for entry in response["Roles"]]

    change(profile.type, "identity-head", role=other)
    assert roles() == [other]
    change(profile.type, "identity-head", role=before)
    assert roles() == [before]


def test_source_and_description_of_a_security_group_rule_are_updated(stack: Deployment, change: Change) -> None:
    kind, name = "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule", "security-nodes-to-internet"
    before = stack.resource(kind, name).inputs["cidrIpv4"]
    change(kind, name, cidrIpv4="10.0.0.0/8", description="changed")
    by_id = [{"Name": "security-group-rule-id", "Values": [stack.resource(kind, name).id]}]
    (rule,) = boto3.client("ec2").describe_security_group_rules(Filters=by_id)["SecurityGroupRules"]
    assert (rule["CidrIpv4"], rule["Description"], rule["IpProtocol"]) == ("10.0.0.0/8", "changed", "-1")
    change(kind, name, cidrIpv4=before)


def test_update_command_receives_the_previous_output(aws: object, tmp_path: Path) -> None:
    (tmp_path / "infra").mkdir()
    old_inputs = {"create": "echo created", "update": "echo $PULUMI_COMMAND_STDOUT and updated"}
    request = ResourceRequest(
        urn="urn:pulumi:s::trainyard::command:local:Command::c",
        type=Command.type,
        name="c",
        inputs={**old_inputs, "environment": {"A": "b"}},
        outputs={"stdout": "created"},
        old_inputs=old_inputs,
    )
    changed = EmulatedAccount("us-east-1").update(request, tmp_path, lambda line: None)
    assert changed["stdout"] == "created and updated"


def test_storage_capacity_of_a_file_system_cannot_be_updated(account: EmulatedAccount, tmp_path: Path) -> None:
    kind, old_inputs = "aws:fsx/lustreFileSystem:LustreFileSystem", {"storageCapacity": 1200}
    request = ResourceRequest(
        urn="u", type=kind, name="fs", inputs={"storageCapacity": 2400}, old_inputs=old_inputs, id="fs-1"
    )
    with pytest.raises(RequestFailedError, match="fs: the adapter does not support changes of storageCapacity"):
        account.update(request, tmp_path, lambda line: None)
