"""AMIs of the account's instances: properties, EC2's errors and deletion."""

import time
from typing import Any

import pytest
from botocore.exceptions import ClientError

from rehearsal.aws.process import EmulatedAws
from tests.polling import eventually
from tests.rehearsal.aws.conftest import Client, Network

TAGS = [{"Key": "trainyard:role", "Value": "image"}]


@pytest.fixture
def stopped(client: Client, network: Network) -> str:
    """A stopped instance with an encrypted root volume of 20 GiB."""
    key = client("kms").create_key()["KeyMetadata"]["Arn"]
    ebs = {"VolumeSize": 20, "VolumeType": "gp3", "Encrypted": True, "KmsKeyId": key}
    launched = client("ec2").run_instances(
        ImageId=network.image,
        InstanceType="t3.medium",
        MinCount=1,
        MaxCount=1,
        SubnetId=network.subnet,
        BlockDeviceMappings=[{"DeviceName": "/dev/sda1", "Ebs": ebs}],
    )
    name: str = launched["Instances"][0]["InstanceId"]
    client("ec2").stop_instances(InstanceIds=[name])
    return name


def create_image(client: Client, instance: str) -> str:
    kinds = ("image", "snapshot")
    response = client("ec2").create_image(
        InstanceId=instance,
        Name=f"baked-{time.monotonic_ns()}",
        TagSpecifications=[{"ResourceType": kind, "Tags": TAGS} for kind in kinds],
    )
    return str(response["ImageId"])


def described(client: Client, image: str) -> dict[str, Any]:
    images: dict[str, Any] = client("ec2").describe_images(ImageIds=[image])["Images"][0]
    return images


def available(client: Client, image: str) -> dict[str, Any]:
    eventually(lambda: described(client, image)["State"] == "available", "the image", 10)
    return described(client, image)


def error_code(call: Any, **parameters: Any) -> str:
    with pytest.raises(ClientError) as caught:
        call(**parameters)
    return str(caught.value.response["Error"]["Code"])


def test_image_has_the_properties_of_the_instance(client: Client, network: Network, stopped: str) -> None:
    first = create_image(client, stopped)
    assert described(client, first)["State"] == "pending"
    image, source = available(client, first), described(client, network.image)
    for key in ("Architecture", "RootDeviceName", "RootDeviceType", "VirtualizationType", "BootMode"):
        assert image[key] == source[key], key
    assert (image["SourceInstanceId"], image["Public"], image["Tags"]) == (stopped, False, TAGS)
    (device,) = image["BlockDeviceMappings"]
    assert (device["Ebs"]["VolumeSize"], device["Ebs"]["Encrypted"]) == (20, True)
    (snapshot,) = client("ec2").describe_snapshots(SnapshotIds=[device["Ebs"]["SnapshotId"]])["Snapshots"]
    assert (snapshot["Encrypted"], snapshot["VolumeSize"], snapshot["Tags"]) == (True, 20, TAGS)
    assert snapshot["State"] == "completed"


def test_image_is_described_by_owner_and_tags(client: Client, stopped: str) -> None:
    image = create_image(client, stopped)
    filters = [{"Name": "tag:trainyard:role", "Values": ["image"]}, {"Name": "source-instance-id", "Values": [stopped]}]
    images = client("ec2").describe_images(Owners=["self"], Filters=filters)["Images"]
    assert [image_entry["ImageId"] for image_entry in images] == [image]


def test_instance_of_an_encrypted_image_has_an_encrypted_root_volume(
    client: Client, network: Network, stopped: str
) -> None:
    image = create_image(client, stopped)
    launch = {"ImageId": image, "InstanceType": "t3.medium", "MinCount": 1, "MaxCount": 1, "SubnetId": network.subnet}
    assert error_code(client("ec2").run_instances, **launch) == "InvalidAMIID.Unavailable"  # pending
    available(client, image)
    (instance,) = client("ec2").run_instances(**launch)["Instances"]
    (volume,) = client("ec2").describe_volumes(
        Filters=[{"Name": "attachment.instance-id", "Values": [instance["InstanceId"]]}]
    )["Volumes"]
    assert (volume["Encrypted"], volume["Size"]) == (True, 20)


def test_invalid_create_image_is_refused(client: Client, stopped: str) -> None:
    ec2 = client("ec2")
    image = described(client, create_image(client, stopped))
    assert error_code(ec2.create_image, InstanceId=stopped, Name=image["Name"]) == "InvalidAMIName.Duplicate"
    assert error_code(ec2.create_image, InstanceId=stopped, Name="all*") == "InvalidAMIName.Malformed"
    assert error_code(ec2.create_image, InstanceId="i-0123456789abcdef0", Name="none") == "InvalidInstanceID.NotFound"
    ec2.terminate_instances(InstanceIds=[stopped])
    assert error_code(ec2.create_image, InstanceId=stopped, Name="ended") == "IncorrectInstanceState"


def test_image_outlives_the_instance_and_is_deleted_with_the_snapshot(
    client: Client, network: Network, stopped: str, aws: EmulatedAws
) -> None:
    image = available(client, create_image(client, stopped))
    snapshot = image["BlockDeviceMappings"][0]["Ebs"]["SnapshotId"]
    client("ec2").terminate_instances(InstanceIds=[stopped])
    assert {image["ImageId"], snapshot} <= {resource.id for resource in aws.list_resources()}
    assert error_code(client("ec2").delete_snapshot, SnapshotId=snapshot) == "InvalidSnapshot.InUse"
    assert error_code(client("ec2").deregister_image, ImageId=network.image) == "AuthFailure"
    client("ec2").deregister_image(ImageId=image["ImageId"], DeleteAssociatedSnapshots=True)
    assert not {image["ImageId"], snapshot} & {resource.id for resource in aws.list_resources()}
