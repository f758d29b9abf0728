"""Deployment of the local and the A100 stack to the emulated AWS, and their destroy."""

import base64
import json
import re

import boto3

from rehearsal.adapter.account import EmulatedAccount
from rehearsal.adapter.deployment import Deployment
from rehearsal.adapter.teardown import destroy
from rehearsal.aws.process import EmulatedAws
from tests.rehearsal.adapter.conftest import Deploy

ResourceIds = set[tuple[str, str, str]]


def existing_ids(aws: EmulatedAws) -> ResourceIds:
    return {(each.service, each.kind, each.id) for each in aws.list_resources()}


def test_local_stack_is_created_and_destroy_keeps_only_retained_resources(
    aws: EmulatedAws, account: EmulatedAccount, deploy: Deploy
) -> None:
    before, calls = existing_ids(aws), len(aws.journal())
    run = deploy("complete", account, "local")
    assert all(resource.exists for resource in run.resources.values())
    assert len(existing_ids(aws) - before) > 20

    check_destroyed(aws, run, before)
    mutating = [call for call in aws.journal()[calls:] if call.mutating]
    assert not [call for call in mutating if not call.urn], "a call of the adapter without the URN of a resource"


def test_gpu_stack_is_created_with_all_settings_and_destroyed(
    aws: EmulatedAws, account: EmulatedAccount, deploy: Deploy
) -> None:
    before = existing_ids(aws)
    run = deploy("gpus", account, "a100-cluster")
    template = run.resource("aws:ec2/launchTemplate:LaunchTemplate", "workers-deep-learning").id
    versions = boto3.client("ec2").describe_launch_template_versions(LaunchTemplateId=template)
    data = versions["LaunchTemplateVersions"][0]["LaunchTemplateData"]
    layout = [
        (each["NetworkCardIndex"], each["DeviceIndex"], each["InterfaceType"], len(each["Groups"]))
        for each in data["NetworkInterfaces"]
    ]
    assert layout == [(0, 0, "interface", 2), *((card, card == 0, "efa-only", 2) for card in range(4))]
    assert data["MetadataOptions"]["HttpTokens"] == "required"
    assert data["BlockDeviceMappings"][0]["Ebs"]["Encrypted"] is True
    assert base64.b64decode(data["UserData"]).startswith(b"#cloud-config")
    (lustre,) = boto3.client("fsx").describe_file_systems()["FileSystems"]
    assert (lustre["Lifecycle"], lustre["StorageCapacity"]) == ("AVAILABLE", 1200)
    check_destroyed(aws, run, before)


def test_default_security_group_of_the_vpc_has_no_rules(local: Deployment) -> None:
    """EC2 creates the group with rules, which the deployment removes."""
    ec2 = boto3.client("ec2")

    def rules(vpc: str) -> list[bool]:
        in_vpc = [{"Name": "vpc-id", "Values": [vpc]}, {"Name": "group-name", "Values": ["default"]}]
        (group,) = ec2.describe_security_groups(Filters=in_vpc)["SecurityGroups"]
        by_group = [{"Name": "group-id", "Values": [group["GroupId"]]}]
        return sorted(
            rule["IsEgress"] for rule in ec2.describe_security_group_rules(Filters=by_group)["SecurityGroupRules"]
        )

    other = ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    try:
        assert rules(other) == [False, True]
    finally:
        ec2.delete_vpc(VpcId=other)
    assert rules(local.resource("aws:ec2/vpc:Vpc", "network-vpc").id) == []


def check_destroyed(aws: EmulatedAws, run: Deployment, before: ResourceIds) -> None:
    destroyed = destroy(run)
    remaining = existing_ids(aws) - before
    expected = {run.exports["data_bucket"], run.resource("aws:kms/key:Key", "key-stack-key").id}
    assert {name.rpartition("/")[2] for _, _, name in remaining} == expected
    retained = {resource.urn for resource in run.resources.values() if resource.custom and resource.retain_on_delete}
    assert {resource.urn for resource in destroyed.retained} == retained
    assert {resource.urn for resource in run.existing_resources} == retained


def test_each_aws_resource_has_a_successful_mutating_call(aws: EmulatedAws, local: Deployment) -> None:
    calls = [call for call in aws.journal() if "urn:pulumi:shared::trainyard::" in (call.urn or "") and call.mutating]
    urns = {resource.urn for resource in local.resources.values() if resource.type.startswith("aws:")}
    assert {call.urn for call in calls if call.status < 300} == urns


def test_head_runs_with_role_and_user_data(aws: EmulatedAws, local: Deployment) -> None:
    (head,) = [each for each in aws.instances() if each.autoscaling_group == local.exports["head_group"]]
    assert head.state == "running"
    assert head.role_name == local.resource("aws:iam/role:Role", "identity-head").id
    template = local.resource("aws:ec2/launchTemplate:LaunchTemplate", "head-ubuntu-24.04")
    assert head.user_data == template.inputs["userData"]
    assert head.tags["trainyard:role"] == "head"


def test_group_is_empty_tagged_and_not_rebalanced(local: Deployment) -> None:
    client = boto3.client("autoscaling")
    (group,) = client.describe_auto_scaling_groups(AutoScalingGroupNames=local.exports["groups"])["AutoScalingGroups"]
    assert (group["MinSize"], group["DesiredCapacity"], group["MaxSize"], group["Instances"]) == (0, 0, 3, [])
    assert [process["ProcessName"] for process in group["SuspendedProcesses"]] == ["AZRebalance"]
    assert {tag["Key"] for tag in group["Tags"]} >= {"trainyard:stack", "trainyard:role", "Name"}


def test_manifest_is_at_the_exported_uri(local: Deployment) -> None:
    bucket, _, key = local.exports["manifest"].removeprefix("s3://").partition("/")
    s3 = boto3.client("s3")
    manifest = json.loads(s3.get_object(Bucket=bucket, Key=key)["Body"].read())
    assert manifest["data_bucket"] == local.exports["data_bucket"]
    bundle_bucket, _, bundle_key = manifest["bundle"]["uri"].removeprefix("s3://").partition("/")
    s3.head_object(Bucket=bundle_bucket, Key=bundle_key)


def test_physical_name_is_the_resource_name_with_a_unique_suffix(local: Deployment) -> None:
    for resource in local.resources_of_type("aws:iam/role:Role"):
        assert re.fullmatch(rf"{resource.name}-[0-9a-f]{{7}}", resource.id)


def read_settings(bucket: str) -> dict[str, object]:
    """Return all settings of a bucket."""
    s3 = boto3.client("s3")
    settings = {
        name: getattr(s3, f"get_{name}")(Bucket=bucket)
        for name in (
            "bucket_versioning",
            "bucket_encryption",
            "public_access_block",
            "bucket_policy",
            "bucket_lifecycle_configuration",
            "bucket_tagging",
        )
    }
    for response in settings.values():
        response.pop("ResponseMetadata")
    return settings


def test_second_up_imports_the_data_bucket_unchanged(
    aws: EmulatedAws, account: EmulatedAccount, deploy: Deploy
) -> None:
    first = deploy("import", account, "local")
    bucket = first.exports["data_bucket"]
    s3 = boto3.client("s3")
    s3.put_object(Bucket=bucket, Key="runs/r-1/results.json", Body=b"{}")
    destroy(first)
    before = read_settings(bucket)

    second = deploy("import", account, "local")
    assert second.exports["data_bucket"] == bucket
    assert second.resource("aws:s3/bucket:Bucket", "trainyard-data").imported
    assert read_settings(bucket) == before
    assert s3.get_object(Bucket=bucket, Key="runs/r-1/results.json")["Body"].read() == b"{}"
    destroy(second)


def test_second_stack_shares_no_resources(account: EmulatedAccount, deploy: Deploy, local: Deployment) -> None:
    other = deploy("second", account, "local")
    assert other.exports["data_bucket"] != local.exports["data_bucket"]
    names = [{each.id for each in run.existing_resources if each.type.startswith("aws:")} for run in (local, other)]
    assert not names[0] & names[1]
    destroy(other)
