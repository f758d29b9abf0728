"""Handlers of what a stack's capacity, endpoints and file systems are made of."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from rehearsal.adapter.account import Adapter, Subject
from rehearsal.adapter.errors import Refused, UnknownKey
from rehearsal.adapter.handler import Call
from rehearsal.aws.process import EmulatedAws
from rehearsal.aws.seed_models import Given, GivenBucket, GivenNetwork, GivenSubnet

VPC, SUBNET = "vpc-0123456789abcdef3", "subnet-0123456789abcdef3"
LINK = "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation"
LUSTRE = "aws:fsx/lustreFileSystem:LustreFileSystem"
ENDPOINT = "aws:ec2/vpcEndpoint:VpcEndpoint"
TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"
BUCKET = "linked-of-the-adapter"


@pytest.fixture(autouse=True)
def network(aws: EmulatedAws) -> None:
    one = GivenNetwork(id=VPC, subnets=(GivenSubnet(id=SUBNET, zone="us-east-1a"),), services=("s3",))
    aws.give(Given(region="us-east-1", networks=(one,), buckets=(GivenBucket(name=BUCKET),)))


def subject(type_: str, id_: str = "", **inputs: Any) -> Subject:
    return Subject(urn=f"urn:pulumi:s::trainyard::{type_}::mine", type=type_, name="mine", inputs=inputs, id=id_)


def quiet(line: str) -> None:
    assert line


def create(account: Adapter, type_: str, **inputs: Any) -> tuple[str, dict[str, Any]]:
    return account.create(subject(type_, **inputs), Path(), quiet)


def delete(account: Adapter, type_: str, id_: str, **inputs: Any) -> None:
    account.delete(subject(type_, id_, **inputs), Path(), quiet)


@pytest.fixture
def file_system(account: Adapter) -> Iterator[str]:
    wanted = {
        "deploymentType": "SCRATCH_2",
        "storageCapacity": 1200,
        "fileSystemTypeVersion": "2.15",
        "subnetIds": SUBNET,
    }
    made, _ = create(account, LUSTRE, **wanted)
    yield made
    delete(account, LUSTRE, made, **wanted)


def linked(name: str) -> dict[str, Any]:
    return dict(boto3.client("fsx").describe_data_repository_associations(AssociationIds=[name])["Associations"][0])


def test_a_link_is_made_changed_and_deleted(account: Adapter, file_system: str) -> None:
    inputs: dict[str, Any] = {
        "fileSystemId": file_system,
        "dataRepositoryPath": f"s3://{BUCKET}/datasets/",
        "fileSystemPath": "/datasets",
        "batchImportMetaDataOnCreate": True,
        "deleteDataInFilesystem": False,
        "s3": {"autoImportPolicy": {"events": ["NEW", "CHANGED", "DELETED"]}, "autoExportPolicy": {"events": ["NEW"]}},
        "tags": {"a": "1", "b": "2"},
    }
    made, outputs = create(account, LINK, **inputs)
    found = linked(made)
    assert (found["Lifecycle"], outputs["associationId"], outputs["arn"]) == ("AVAILABLE", made, found["ResourceARN"])
    assert found["S3"]["AutoExportPolicy"]["Events"] == ["NEW"]
    news = {**inputs, "s3": {"autoExportPolicy": {"events": ["NEW", "CHANGED"]}}, "tags": {"b": "3"}}
    one = subject(LINK, made, **news)
    call = Call(aws=account.aws, urn=one.urn, type=LINK, name="mine", inputs=news, root=Path(), id=made, olds=inputs)
    account.handler(one).update(call)
    found = linked(made)
    assert found["S3"]["AutoExportPolicy"]["Events"] == ["NEW", "CHANGED"]
    assert found["Tags"] == [{"Key": "b", "Value": "3"}]
    delete(account, LINK, made, **news)
    with pytest.raises(boto3.client("fsx").exceptions.DataRepositoryAssociationNotFound):
        linked(made)
    delete(account, LINK, made, **news)  # a deletion that was cut is repeated


def test_what_would_replace_a_link_is_named(account: Adapter) -> None:
    handler = account.handler(subject(LINK))
    assert handler.replaces == {"fileSystemId", "dataRepositoryPath", "fileSystemPath"}
    assert handler.replaces <= handler.keys.keys()


@pytest.mark.parametrize("service", ["ssm", "ecr.dkr"])
def test_an_interface_endpoint_is_gone_when_its_deletion_returns(account: Adapter, service: str) -> None:
    ec2 = boto3.client("ec2")
    group = ec2.create_security_group(GroupName="endpoint", Description="x", VpcId=VPC)["GroupId"]
    inputs: dict[str, Any] = {
        "vpcId": VPC,
        "vpcEndpointType": "Interface",
        "serviceName": f"com.amazonaws.us-east-1.{service}",
        "subnetIds": [SUBNET],
        "securityGroupIds": [group],
        "privateDnsEnabled": True,
    }
    made, _ = create(account, ENDPOINT, **inputs)
    (found,) = ec2.describe_vpc_endpoints(VpcEndpointIds=[made])["VpcEndpoints"]
    assert (found["State"], found["PrivateDnsEnabled"], found["SubnetIds"]) == ("available", True, [SUBNET])
    delete(account, ENDPOINT, made, **inputs)
    ec2.delete_security_group(GroupId=group)


def test_a_launch_template_says_market_reservation_and_description(account: Adapter) -> None:
    made, _ = create(
        account,
        TEMPLATE,
        instanceType="g5.xlarge",
        description="spot workers",
        monitoring={"enabled": True},
        instanceMarketOptions={
            "marketType": "spot",
            "spotOptions": {
                "maxPrice": "0.9",
                "spotInstanceType": "one-time",
                "instanceInterruptionBehavior": "terminate",
            },
        },
    )
    ec2 = boto3.client("ec2")
    (version,) = ec2.describe_launch_template_versions(LaunchTemplateId=made)["LaunchTemplateVersions"]
    assert version["VersionDescription"] == "spot workers"
    data = version["LaunchTemplateData"]
    assert data["Monitoring"] == {"Enabled": True}
    assert data["InstanceMarketOptions"]["SpotOptions"]["MaxPrice"] == "0.9"
    target = {"capacityReservationTarget": {"capacityReservationId": "cr-0aaaaaaaaaaaaaaaa"}}
    block, _ = create(
        account,
        TEMPLATE,
        instanceType="p4d.24xlarge",
        instanceMarketOptions={"marketType": "capacity-block"},
        capacityReservationSpecification=target,
    )
    (version,) = ec2.describe_launch_template_versions(LaunchTemplateId=block)["LaunchTemplateVersions"]
    told = version["LaunchTemplateData"]["CapacityReservationSpecification"]
    assert told == {"CapacityReservationTarget": {"CapacityReservationId": "cr-0aaaaaaaaaaaaaaaa"}}
    with pytest.raises(UnknownKey, match=r"spotOptions\.validUntil"):
        create(account, TEMPLATE, instanceMarketOptions={"spotOptions": {"validUntil": "x"}})


def test_a_file_system_takes_key_and_backups_and_says_what_aws_says(account: Adapter) -> None:
    key = boto3.client("kms").create_key()["KeyMetadata"]
    inputs: dict[str, Any] = {
        "deploymentType": "PERSISTENT_2",
        "storageCapacity": 1200,
        "perUnitStorageThroughput": 125,
        "kmsKeyId": key["Arn"],
        "automaticBackupRetentionDays": 7,
        "copyTagsToBackups": True,
        "skipFinalBackup": False,
        "subnetIds": SUBNET,
    }
    made, _ = create(account, LUSTRE, **inputs)
    fsx = boto3.client("fsx")
    (found,) = fsx.describe_file_systems(FileSystemIds=[made])["FileSystems"]
    assert (found["KmsKeyId"], found["LustreConfiguration"]["AutomaticBackupRetentionDays"]) == (key["Arn"], 7)
    assert found["LustreConfiguration"]["CopyTagsToBackups"] is True
    delete(account, LUSTRE, made, **inputs)
    (backup,) = fsx.describe_backups()["Backups"]
    fsx.delete_backup(BackupId=backup["BackupId"])


def test_what_fsx_refuses_is_told_with_the_resource(account: Adapter) -> None:
    scratch = {"deploymentType": "SCRATCH_2", "storageCapacity": 1200, "subnetIds": SUBNET}
    with pytest.raises(Refused, match=r"mine: CreateFileSystem: BadRequest: Backups are not supported"):
        create(account, LUSTRE, **scratch, automaticBackupRetentionDays=7)
