"""Handlers of launch templates, VPC endpoints and FSx for Lustre."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from rehearsal.adapter.account import EmulatedAccount, ResourceRequest
from rehearsal.adapter.errors import RequestFailedError, UnsupportedInputError
from rehearsal.adapter.handler import HandlerCall
from rehearsal.aws.faults import FsxDeployment
from rehearsal.aws.process import EmulatedAws
from rehearsal.aws.seed_models import AccountSeed, SeedBucket, SeedNetwork, SeedSubnet

VPC, SUBNET = "vpc-0123456789abcdef3", "subnet-0123456789abcdef3"
ASSOCIATION = "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation"
LUSTRE = "aws:fsx/lustreFileSystem:LustreFileSystem"
ENDPOINT = "aws:ec2/vpcEndpoint:VpcEndpoint"
TEMPLATE = "aws:ec2/launchTemplate:LaunchTemplate"
BUCKET = "associated-bucket"


@pytest.fixture(autouse=True)
def network(aws: EmulatedAws) -> None:
    network = SeedNetwork(id=VPC, subnets=(SeedSubnet(id=SUBNET, zone="us-east-1a"),), services=("s3",))
    aws.seed(AccountSeed(region="us-east-1", networks=(network,), buckets=(SeedBucket(name=BUCKET),)))


def request(type_: str, id_: str = "", **inputs: Any) -> ResourceRequest:
    return ResourceRequest(
        urn=f"urn:pulumi:s::trainyard::{type_}::example", type=type_, name="example", inputs=inputs, id=id_
    )


def check_line(line: str) -> None:
    assert line


def create(account: EmulatedAccount, type_: str, **inputs: Any) -> tuple[str, dict[str, Any]]:
    return account.create(request(type_, **inputs), Path(), check_line)


def delete(account: EmulatedAccount, type_: str, id_: str, **inputs: Any) -> None:
    account.delete(request(type_, id_, **inputs), Path(), check_line)


@pytest.fixture
def file_system(account: EmulatedAccount) -> Iterator[str]:
    inputs = {
        "deploymentType": "SCRATCH_2",
        "storageCapacity": 1200,
        "fileSystemTypeVersion": "2.15",
        "subnetIds": SUBNET,
    }
    created, _ = create(account, LUSTRE, **inputs)
    yield created
    delete(account, LUSTRE, created, **inputs)


def describe_association(association_id: str) -> dict[str, Any]:
    return dict(
        boto3.client("fsx").describe_data_repository_associations(AssociationIds=[association_id])["Associations"][0]
    )


def test_association_is_created_updated_and_deleted(account: EmulatedAccount, file_system: str) -> None:
    inputs: dict[str, Any] = {
        "fileSystemId": file_system,
        "dataRepositoryPath": f"s3://{BUCKET}/datasets/",
        "fileSystemPath": "/datasets",
        "batchImportMetaDataOnCreate": True,
        "s3": {"autoImportPolicy": {"events": ["NEW", "CHANGED", "DELETED"]}, "autoExportPolicy": {"events": ["NEW"]}},
        "tags": {"a": "1", "b": "2"},
    }
    created, outputs = create(account, ASSOCIATION, **inputs)
    result = describe_association(created)
    assert (result["Lifecycle"], outputs["associationId"], outputs["arn"]) == (
        "AVAILABLE",
        created,
        result["ResourceARN"],
    )
    assert result["S3"]["AutoExportPolicy"]["Events"] == ["NEW"]
    new_inputs = {**inputs, "s3": {"autoExportPolicy": {"events": ["NEW", "CHANGED"]}}, "tags": {"b": "3"}}
    update = request(ASSOCIATION, created, **new_inputs)
    call = HandlerCall(
        aws=account.aws,
        urn=update.urn,
        type=ASSOCIATION,
        name="example",
        inputs=new_inputs,
        folder=Path(),
        id=created,
        old_inputs=inputs,
    )
    account.handler(update).update(call)
    result = describe_association(created)
    assert result["S3"]["AutoExportPolicy"]["Events"] == ["NEW", "CHANGED"]
    assert result["Tags"] == [{"Key": "b", "Value": "3"}]
    delete(account, ASSOCIATION, created, **new_inputs)
    with pytest.raises(boto3.client("fsx").exceptions.DataRepositoryAssociationNotFound):
        describe_association(created)
    delete(account, ASSOCIATION, created, **new_inputs)  # a deletion repeats after an interrupt


def test_association_lists_inputs_that_replace_it(account: EmulatedAccount) -> None:
    handler = account.handler(request(ASSOCIATION))
    assert handler.replace_on_changes == {"fileSystemId", "dataRepositoryPath", "fileSystemPath"}
    assert handler.replace_on_changes <= handler.keys.keys()


@pytest.mark.parametrize("service", ["ssm", "ecr.dkr"])
def test_interface_endpoint_is_deleted_when_delete_returns(account: EmulatedAccount, service: str) -> None:
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
    created, _ = create(account, ENDPOINT, **inputs)
    (result,) = ec2.describe_vpc_endpoints(VpcEndpointIds=[created])["VpcEndpoints"]
    assert (result["State"], result["PrivateDnsEnabled"], result["SubnetIds"]) == ("available", True, [SUBNET])
    delete(account, ENDPOINT, created, **inputs)
    ec2.delete_security_group(GroupId=group)


def test_launch_template_has_market_options_and_reservation(account: EmulatedAccount) -> None:
    created, _ = create(
        account,
        TEMPLATE,
        instanceType="g5.xlarge",
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
    (version,) = ec2.describe_launch_template_versions(LaunchTemplateId=created)["LaunchTemplateVersions"]
    data = version["LaunchTemplateData"]
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
    described = version["LaunchTemplateData"]["CapacityReservationSpecification"]
    assert described == {"CapacityReservationTarget": {"CapacityReservationId": "cr-0aaaaaaaaaaaaaaaa"}}
    with pytest.raises(UnsupportedInputError, match=r"spotOptions\.validUntil"):
        create(account, TEMPLATE, instanceMarketOptions={"spotOptions": {"validUntil": "x"}})


def test_file_system_has_key_and_backup_settings_and_no_final_backup(account: EmulatedAccount) -> None:
    key = boto3.client("kms").create_key()["KeyMetadata"]
    inputs: dict[str, Any] = {
        "deploymentType": "PERSISTENT_2",
        "storageCapacity": 1200,
        "perUnitStorageThroughput": 125,
        "kmsKeyId": key["Arn"],
        "automaticBackupRetentionDays": 7,
        "copyTagsToBackups": True,
        "subnetIds": SUBNET,
    }
    created, _ = create(account, LUSTRE, **inputs)
    fsx = boto3.client("fsx")
    (result,) = fsx.describe_file_systems(FileSystemIds=[created])["FileSystems"]
    assert (result["KmsKeyId"], result["LustreConfiguration"]["AutomaticBackupRetentionDays"]) == (key["Arn"], 7)
    assert result["LustreConfiguration"]["CopyTagsToBackups"] is True
    delete(account, LUSTRE, created, **inputs)
    assert fsx.describe_backups()["Backups"] == []


def test_error_of_fsx_names_the_resource(account: EmulatedAccount) -> None:
    scratch = {"deploymentType": "SCRATCH_2", "storageCapacity": 1200, "subnetIds": SUBNET}
    with pytest.raises(RequestFailedError, match=r"example: CreateFileSystem: BadRequest: Backups are not supported"):
        create(account, LUSTRE, **scratch, automaticBackupRetentionDays=7)


def test_unavailable_deployment_type_is_one_error_with_type_and_zone(
    aws: EmulatedAws, account: EmulatedAccount
) -> None:
    aws.inject(FsxDeployment(zone="us-east-1a", type="SCRATCH_2"))
    try:
        with pytest.raises(RequestFailedError) as caught:
            create(account, LUSTRE, deploymentType="SCRATCH_2", storageCapacity=1200, subnetIds=SUBNET)
    finally:
        aws.clear_faults()
    message = str(caught.value)
    assert message.startswith(f"{LUSTRE} example: CreateFileSystem: BadRequest: ")
    assert "(SCRATCH_2)" in message
    assert "(us-east-1a)" in message
    assert "\n" not in message
