"""What the program can change in place: each change is looked up in the account by its own API."""

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest

from rehearsal.adapter.account import Adapter, Subject
from rehearsal.adapter.command import Command
from rehearsal.adapter.errors import Refused
from rehearsal.adapter.graph import Deployment, Resource
from rehearsal.aws.process import EmulatedAws
from tests.rehearsal.adapter.conftest import Deploy

INSTANCE, TEMPLATE = "aws:ec2/instance:Instance", "aws:ec2/launchTemplate:LaunchTemplate"
Change = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def stack(aws: EmulatedAws) -> Deployment:
    """A stack of these tests' own."""
    return Deploy()("changing", Adapter(aws.region, run_commands=False), "local")


@pytest.fixture
def change(account: Adapter, stack: Deployment, tmp_path: Path) -> Change:
    """Changes inputs of a resource of the stack: the outputs that this changed."""

    def apply(type_: str, name: str, **news: Any) -> dict[str, Any]:
        standing = stack.one(type_, name)
        olds = {**standing.inputs}
        subject = replace(standing.subject, inputs={**olds, **news}, olds=olds)
        changed = account.update(subject, tmp_path, lambda line: None)
        standing.inputs = subject.inputs
        standing.outputs = {**standing.outputs, **changed}
        return changed

    return apply


def the(stack: Deployment, type_: str) -> Resource:
    """The only one of a type, whose name tells more than its role."""
    (found,) = stack.of_type(type_)
    return found


def borne(tags: list[dict[str, str]]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in tags}


@pytest.mark.parametrize(
    ("type_", "name"),
    [
        ("aws:ec2/vpc:Vpc", "vpc"),
        ("aws:ec2/subnet:Subnet", "private"),
        ("aws:ec2/internetGateway:InternetGateway", "internet"),
        ("aws:ec2/eip:Eip", "nat-address"),
        ("aws:ec2/natGateway:NatGateway", "nat"),
        ("aws:ec2/routeTable:RouteTable", "private"),
        ("aws:ec2/vpcEndpoint:VpcEndpoint", "s3"),
        ("aws:ec2/securityGroup:SecurityGroup", "nodes"),
        ("aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule", "nodes-to-world"),
        (INSTANCE, ""),
        (TEMPLATE, ""),
        ("aws:ec2/placementGroup:PlacementGroup", "cluster"),
    ],
)
def test_tags_of_ec2_are_put_and_taken_away(stack: Deployment, change: Change, type_: str, name: str) -> None:
    thing = stack.one(type_, name) if name else the(stack, type_)
    resource = thing.outputs.get("placementGroupId", thing.id)
    before = dict(thing.inputs["tags"])
    change(type_, thing.name, tags={**before, "Name": "renamed", "extra": "1"})
    change(type_, thing.name, tags={**before, "Name": "renamed"})
    found = boto3.client("ec2").describe_tags(Filters=[{"Name": "resource-id", "Values": [resource]}])["Tags"]
    own = {tag["Key"]: tag["Value"] for tag in found if not tag["Key"].startswith("aws:")}
    assert own == {**before, "Name": "renamed"}


def test_vpc_attribute_is_put(stack: Deployment, change: Change) -> None:
    change("aws:ec2/vpc:Vpc", "vpc", enableDnsHostnames=False)
    vpc = stack.one("aws:ec2/vpc:Vpc", "vpc").id
    told = boto3.client("ec2").describe_vpc_attribute(VpcId=vpc, Attribute="enableDnsHostnames")
    assert told["EnableDnsHostnames"]["Value"] is False


def test_subnet_gives_public_addresses_when_told_to(stack: Deployment, change: Change) -> None:
    change("aws:ec2/subnet:Subnet", "private", mapPublicIpOnLaunch=True)
    (told,) = boto3.client("ec2").describe_subnets(SubnetIds=[stack.one("aws:ec2/subnet:Subnet", "private").id])[
        "Subnets"
    ]
    assert told["MapPublicIpOnLaunch"] is True


def test_route_leads_elsewhere(stack: Deployment, change: Change) -> None:
    gateway = stack.one("aws:ec2/internetGateway:InternetGateway", "internet").id
    route = stack.one("aws:ec2/route:Route", "private")
    nat = route.inputs["natGatewayId"]
    tables = [route.inputs["routeTableId"]]

    def targets() -> dict[str, Any]:
        (told,) = boto3.client("ec2").describe_route_tables(RouteTableIds=tables)["RouteTables"]
        return next(one for one in told["Routes"] if one.get("DestinationCidrBlock") == "0.0.0.0/0")

    route.inputs = {key: value for key, value in route.inputs.items() if key != "natGatewayId"}
    change("aws:ec2/route:Route", "private", gatewayId=gateway)
    assert targets()["GatewayId"] == gateway
    route.inputs = {key: value for key, value in route.inputs.items() if key != "gatewayId"}
    change("aws:ec2/route:Route", "private", natGatewayId=nat)
    assert targets()["NatGatewayId"] == nat


def test_endpoint_is_reached_from_other_tables(stack: Deployment, change: Change) -> None:
    endpoint = stack.one("aws:ec2/vpcEndpoint:VpcEndpoint", "s3")
    tables = {stack.one("aws:ec2/routeTable:RouteTable", name).id for name in ("private", "public")}
    change(endpoint.type, "s3", routeTableIds=sorted(tables))
    (told,) = boto3.client("ec2").describe_vpc_endpoints(VpcEndpointIds=[endpoint.id])["VpcEndpoints"]
    assert set(told["RouteTableIds"]) == tables


def test_instance_takes_other_groups_and_metadata_options(stack: Deployment, change: Change) -> None:
    ec2, head = boto3.client("ec2"), the(stack, INSTANCE)
    vpc = stack.one("aws:ec2/vpc:Vpc", "vpc").id
    group = ec2.create_security_group(GroupName="other", Description="other", VpcId=vpc)["GroupId"]
    options = {**head.inputs["metadataOptions"], "httpPutResponseHopLimit": 2}
    before = head.inputs["vpcSecurityGroupIds"]
    change(head.type, head.name, vpcSecurityGroupIds=[group], metadataOptions=options)
    told = ec2.describe_instances(InstanceIds=[head.id])["Reservations"][0]["Instances"][0]
    assert [one["GroupId"] for one in told["SecurityGroups"]] == [group]
    assert told["MetadataOptions"]["HttpPutResponseHopLimit"] == 2
    change(head.type, head.name, vpcSecurityGroupIds=before)
    ec2.delete_security_group(GroupId=group)


def test_changed_template_is_a_new_version_and_the_default(stack: Deployment, change: Change) -> None:
    template = the(stack, TEMPLATE)
    user_data = base64.b64encode(b"#cloud-config\n# other\n").decode()
    assert change(template.type, template.name, userData=user_data) == {"latestVersion": 2, "defaultVersion": 2}
    told = boto3.client("ec2").describe_launch_template_versions(LaunchTemplateId=template.id, Versions=["$Default"])[
        "LaunchTemplateVersions"
    ]
    data = told[0]["LaunchTemplateData"]
    assert data["UserData"] == user_data
    assert data["MetadataOptions"]["HttpTokens"] == "required"


def test_template_whose_tags_alone_change_has_no_new_version(stack: Deployment, change: Change) -> None:
    assert change(TEMPLATE, the(stack, TEMPLATE).name, tags={"a": "b"}) == {}


def test_group_takes_size_template_grace_processes_and_tags(stack: Deployment, change: Change) -> None:
    client, group = boto3.client("autoscaling"), stack.one("aws:autoscaling/group:Group", "workers")
    kept = group.inputs["tags"][1:]
    change(
        group.type,
        "workers",
        maxSize=4,
        launchTemplate={**group.inputs["launchTemplate"], "version": "1"},
        healthCheckGracePeriod=77,
        suspendedProcesses=["Terminate"],
        tags=[*kept, {"key": "extra", "value": "1", "propagateAtLaunch": True}],
    )
    (told,) = client.describe_auto_scaling_groups(AutoScalingGroupNames=[group.id])["AutoScalingGroups"]
    assert (told["MaxSize"], told["DesiredCapacity"], told["HealthCheckGracePeriod"]) == (4, 0, 77)
    assert told["LaunchTemplate"]["Version"] == "1"
    assert [one["ProcessName"] for one in told["SuspendedProcesses"]] == ["Terminate"]
    assert {tag["Key"] for tag in told["Tags"]} == {*(tag["key"] for tag in kept), "extra"}


def test_groups_desired_capacity_is_not_the_engines_to_change(change: Change) -> None:
    with pytest.raises(Refused, match="workers: the adapter can't change desiredCapacity"):
        change("aws:autoscaling/group:Group", "workers", desiredCapacity=1)


def test_lifecycle_hook_waits_longer(stack: Deployment, change: Change) -> None:
    hook = stack.one("aws:autoscaling/lifecycleHook:LifecycleHook", "workers-leave")
    change(hook.type, hook.name, heartbeatTimeout=240)
    told = boto3.client("autoscaling").describe_lifecycle_hooks(
        AutoScalingGroupName=hook.inputs["autoscalingGroupName"]
    )
    assert [(one["LifecycleHookName"], one["HeartbeatTimeout"]) for one in told["LifecycleHooks"]] == [(hook.id, 240)]


def test_bucket_takes_other_tags(stack: Deployment, change: Change) -> None:
    bucket = stack.one("aws:s3/bucket:Bucket", "trainyard-staging")
    tags = {**bucket.inputs["tags"], "Name": "renamed"}
    change(bucket.type, bucket.name, tags=tags)
    assert borne(boto3.client("s3").get_bucket_tagging(Bucket=bucket.id)["TagSet"]) == tags


SETTINGS: dict[str, tuple[dict[str, Any], str, Callable[[Any], Any], Any]] = {
    "bucketVersioning:BucketVersioning": (
        {"versioningConfiguration": {"status": "Suspended"}},
        "get_bucket_versioning",
        lambda told: told["Status"],
        "Suspended",
    ),
    "bucketPublicAccessBlock:BucketPublicAccessBlock": (
        {"blockPublicAcls": False},
        "get_public_access_block",
        lambda told: told["PublicAccessBlockConfiguration"]["BlockPublicAcls"],
        False,
    ),
    "bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration": (
        {"rules": [{"applyServerSideEncryptionByDefault": {"sseAlgorithm": "AES256"}, "bucketKeyEnabled": False}]},
        "get_bucket_encryption",
        lambda told: told["ServerSideEncryptionConfiguration"]["Rules"][0]["BucketKeyEnabled"],
        False,
    ),
    "bucketLifecycleConfiguration:BucketLifecycleConfiguration": (
        {"rules": [{"id": "other", "status": "Enabled", "filter": {"prefix": ""}, "expiration": {"days": 3}}]},
        "get_bucket_lifecycle_configuration",
        lambda told: [(rule["ID"], rule["Expiration"]["Days"]) for rule in told["Rules"]],
        [("other", 3)],
    ),
    "bucketPolicy:BucketPolicy": (
        {"policy": json.dumps({"Version": "2012-10-17", "Statement": []})},
        "get_bucket_policy",
        lambda told: json.loads(told["Policy"])["Statement"],
        [],
    ),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_buckets_setting_is_put_again(stack: Deployment, change: Change, setting: str) -> None:
    news, operation, read, wanted = SETTINGS[setting]
    bucket = stack.one(f"aws:s3/{setting}", "data").inputs["bucket"]
    change(f"aws:s3/{setting}", "data", **news)
    assert read(getattr(boto3.client("s3"), operation)(Bucket=bucket)) == wanted


def test_object_holds_other_content_and_says_so(stack: Deployment, change: Change) -> None:
    thing = stack.one("aws:s3/bucketObjectv2:BucketObjectv2", "manifest")
    before = thing.outputs["etag"]
    assert change(thing.type, "manifest", content="other")["etag"] != before
    s3 = boto3.client("s3")
    assert s3.get_object(Bucket=thing.inputs["bucket"], Key=thing.inputs["key"])["Body"].read() == b"other"


def test_object_whose_tags_alone_change_is_not_written_again(stack: Deployment, change: Change) -> None:
    thing = stack.one("aws:s3/bucketObjectv2:BucketObjectv2", "bundle")
    s3, where = boto3.client("s3"), {"Bucket": thing.inputs["bucket"], "Key": thing.inputs["key"]}
    before = s3.head_object(**where)["LastModified"]
    assert change(thing.type, "bundle", tags={"a": "b"}) == {}
    assert borne(s3.get_object_tagging(**where)["TagSet"]) == {"a": "b"}
    assert s3.head_object(**where)["LastModified"] == before


def test_role_is_trusted_otherwise_and_tagged(stack: Deployment, change: Change) -> None:
    role = stack.one("aws:iam/role:Role", "head")
    principal = {"Service": "ssm.amazonaws.com"}
    statement = {"Effect": "Allow", "Principal": principal, "Action": "sts:AssumeRole"}
    trust = {"Version": "2012-10-17", "Statement": [statement]}
    change(role.type, "head", assumeRolePolicy=json.dumps(trust), tags={"a": "b"})
    told = boto3.client("iam").get_role(RoleName=role.id)["Role"]
    assert (told["AssumeRolePolicyDocument"], borne(told["Tags"])) == (trust, {"a": "b"})


def test_roles_policy_is_put_again_under_its_name(stack: Deployment, change: Change) -> None:
    policy = stack.one("aws:iam/rolePolicy:RolePolicy", "workers")
    document = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}]}
    change(policy.type, "workers", policy=json.dumps(document))
    role, _, name = policy.id.partition(":")
    iam = boto3.client("iam")
    assert iam.list_role_policies(RoleName=role)["PolicyNames"] == [name]
    assert iam.get_role_policy(RoleName=role, PolicyName=name)["PolicyDocument"] == document


def test_profile_bears_another_role(stack: Deployment, change: Change) -> None:
    profile = stack.one("aws:iam/instanceProfile:InstanceProfile", "head")
    before, other = profile.inputs["role"], stack.one("aws:iam/role:Role", "workers").id

    def roles() -> list[str]:
        told = boto3.client("iam").get_instance_profile(InstanceProfileName=profile.id)["InstanceProfile"]
        return [one["RoleName"] for one in told["Roles"]]

    change(profile.type, "head", role=other)
    assert roles() == [other]
    change(profile.type, "head", role=before)
    assert roles() == [before]


def test_rule_that_would_let_others_in_is_not_changed_unseen(change: Change) -> None:
    with pytest.raises(Refused, match="nodes-to-world: the adapter can't change cidrIpv4"):
        change("aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule", "nodes-to-world", cidrIpv4="10.0.0.0/8")


def test_command_runs_its_update_with_what_it_told_before(aws: object, tmp_path: Path) -> None:
    (tmp_path / "infra").mkdir()
    olds = {"create": "echo made", "update": "echo $PULUMI_COMMAND_STDOUT and changed"}
    subject = Subject(
        urn="urn:pulumi:s::trainyard::command:local:Command::c",
        type=Command.type,
        name="c",
        inputs={**olds, "environment": {"A": "b"}},
        outputs={"stdout": "made"},
        olds=olds,
    )
    changed = Adapter("us-east-1").update(subject, tmp_path, lambda line: None)
    assert changed["stdout"] == "made and changed"


def test_file_system_that_would_grow_is_refused_with_the_key(account: Adapter, tmp_path: Path) -> None:
    kind, olds = "aws:fsx/lustreFileSystem:LustreFileSystem", {"storageCapacity": 1200}
    subject = Subject(urn="u", type=kind, name="fs", inputs={"storageCapacity": 2400}, olds=olds, id="fs-1")
    with pytest.raises(Refused, match=r"fs: UpdateFileSystem \(storageCapacity\)"):
        account.update(subject, tmp_path, lambda line: None)
