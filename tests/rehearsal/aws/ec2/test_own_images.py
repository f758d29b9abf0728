"""An image of an instance: what it has of it, what EC2 refuses, and how it goes."""

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
    """An instance with an encrypted root of 20 GiB, switched off."""
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


def made(client: Client, instance: str) -> str:
    kinds = ("image", "snapshot")
    answer = client("ec2").create_image(
        InstanceId=instance,
        Name=f"baked-{time.monotonic_ns()}",
        TagSpecifications=[{"ResourceType": kind, "Tags": TAGS} for kind in kinds],
    )
    return str(answer["ImageId"])


def described(client: Client, image: str) -> dict[str, Any]:
    found: dict[str, Any] = client("ec2").describe_images(ImageIds=[image])["Images"][0]
    return found


def available(client: Client, image: str) -> dict[str, Any]:
    eventually(lambda: described(client, image)["State"] == "available", "the image", 10)
    return described(client, image)


def refusal(call: Any, **asked: Any) -> str:
    with pytest.raises(ClientError) as told:
        call(**asked)
    return str(told.value.response["Error"]["Code"])


def test_it_has_what_its_instance_has(client: Client, network: Network, stopped: str) -> None:
    first = made(client, stopped)
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


def test_it_is_found_by_its_tags_among_the_accounts_own(client: Client, stopped: str) -> None:
    image = made(client, stopped)
    filters = [{"Name": "tag:trainyard:role", "Values": ["image"]}, {"Name": "source-instance-id", "Values": [stopped]}]
    found = client("ec2").describe_images(Owners=["self"], Filters=filters)["Images"]
    assert [each["ImageId"] for each in found] == [image]


def test_an_instance_of_it_has_an_encrypted_root_unasked(client: Client, network: Network, stopped: str) -> None:
    image = made(client, stopped)
    launch = {"ImageId": image, "InstanceType": "t3.medium", "MinCount": 1, "MaxCount": 1, "SubnetId": network.subnet}
    assert refusal(client("ec2").run_instances, **launch) == "InvalidAMIID.Unavailable"  # pending
    available(client, image)
    (instance,) = client("ec2").run_instances(**launch)["Instances"]
    (volume,) = client("ec2").describe_volumes(
        Filters=[{"Name": "attachment.instance-id", "Values": [instance["InstanceId"]]}]
    )["Volumes"]
    assert (volume["Encrypted"], volume["Size"]) == (True, 20)


def test_what_ec2_refuses(client: Client, stopped: str) -> None:
    ec2 = client("ec2")
    image = described(client, made(client, stopped))
    assert refusal(ec2.create_image, InstanceId=stopped, Name=image["Name"]) == "InvalidAMIName.Duplicate"
    assert refusal(ec2.create_image, InstanceId=stopped, Name="all*") == "InvalidAMIName.Malformed"
    assert refusal(ec2.create_image, InstanceId="i-0123456789abcdef0", Name="none") == "InvalidInstanceID.NotFound"
    ec2.terminate_instances(InstanceIds=[stopped])
    assert refusal(ec2.create_image, InstanceId=stopped, Name="ended") == "IncorrectInstanceState"


def test_it_outlives_its_instance_and_goes_with_its_snapshot(
    client: Client, network: Network, stopped: str, aws: EmulatedAws
) -> None:
    image = available(client, made(client, stopped))
    snapshot = image["BlockDeviceMappings"][0]["Ebs"]["SnapshotId"]
    client("ec2").terminate_instances(InstanceIds=[stopped])
    assert {image["ImageId"], snapshot} <= {one.id for one in aws.dump()}
    assert refusal(client("ec2").delete_snapshot, SnapshotId=snapshot) == "InvalidSnapshot.InUse"
    assert refusal(client("ec2").deregister_image, ImageId=network.image) == "AuthFailure"
    client("ec2").deregister_image(ImageId=image["ImageId"], DeleteAssociatedSnapshots=True)
    assert not {image["ImageId"], snapshot} & {one.id for one in aws.dump()}
