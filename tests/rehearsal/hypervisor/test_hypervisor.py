"""Images that the hypervisor can boot from."""

from pathlib import Path
from typing import Any

import pytest

from rehearsal.aws.process import EmulatedAws
from rehearsal.hypervisor.hypervisor import Hypervisor
from rehearsal.hypervisor.process.backend import ProcessBackend
from tests.clusters import UBUNTU_PARAMETER
from tests.conftest import REGION, aws_environment
from tests.polling import eventually
from trainyard.aws.clients import client

ADDRESSES = "127.78.0.0/16"  # loopback addresses for the metadata servers


def launch(image: str, stack: str) -> str:
    """Launch an instance of a stack. Returns its id."""
    specifications = [{"ResourceType": "instance", "Tags": [{"Key": "trainyard:stack", "Value": stack}]}]
    request: dict[str, Any] = {"ImageId": image, "InstanceType": "t3.medium", "TagSpecifications": specifications}
    return str(client("ec2", REGION).run_instances(MinCount=1, MaxCount=1, **request)["Instances"][0]["InstanceId"])


def test_image_of_another_rehearsal_cannot_boot(own_account: EmulatedAws, tmp_path: Path) -> None:
    """A shared account keeps the image after the rehearsal, but the rehearsal removes the disk."""
    ec2 = client("ec2", REGION)
    source = launch(client("ssm", REGION).get_parameter(Name=UBUNTU_PARAMETER)["Parameter"]["Value"], "earlier")
    ec2.stop_instances(InstanceIds=[source])
    image = ec2.create_image(InstanceId=source, Name="earlier-image")["ImageId"]
    eventually(lambda: ec2.describe_images(ImageIds=[image])["Images"][0]["State"] == "available", "the image", 10)
    instance = launch(image, "later")
    try:
        hypervisor = Hypervisor(own_account, ProcessBackend(tmp_path), "later", print)
        with pytest.raises(
            RuntimeError, match=f"{instance} boots from {image}, created from {source}, whose disk does not exist"
        ):
            hypervisor.reconcile()
    finally:
        ec2.terminate_instances(InstanceIds=[instance, source])
        ec2.deregister_image(ImageId=image, DeleteAssociatedSnapshots=True)


def test_instances_are_shut_down_after_a_failed_boot(tmp_path: Path) -> None:
    (tmp_path / "nodes").touch()  # a file in the place of the folder: no node can boot
    with EmulatedAws.start(tmp_path / "aws", ADDRESSES, REGION) as account, aws_environment(account):
        ec2 = client("ec2", REGION)
        instance = launch(client("ssm", REGION).get_parameter(Name=UBUNTU_PARAMETER)["Parameter"]["Value"], "failing")
        with Hypervisor(account, ProcessBackend(tmp_path), "failing", print) as hypervisor:
            eventually(lambda: hypervisor.failure is not None, "the failure")
            assert hypervisor.running_instances() == [instance]
            ec2.terminate_instances(InstanceIds=[instance])
            eventually(lambda: not hypervisor.running_instances(), "the shutdown of the instance")


def test_instance_that_does_not_boot_is_impaired(tmp_path: Path) -> None:
    with EmulatedAws.start(tmp_path / "aws", ADDRESSES, REGION) as account, aws_environment(account):
        ec2 = client("ec2", REGION)
        instance = launch(client("ssm", REGION).get_parameter(Name=UBUNTU_PARAMETER)["Parameter"]["Value"], "hanging")
        backend = ProcessBackend(tmp_path)
        hypervisor = Hypervisor(account, backend, "hanging", print)
        hypervisor.hang_next_boots(1)
        hypervisor.reconcile()
        (status,) = ec2.describe_instance_status(InstanceIds=[instance])["InstanceStatuses"]
        assert status["InstanceStatus"]["Status"] == "impaired"
        assert (hypervisor.running_instances(), backend.processes(instance)) == ([instance], [])
        ec2.terminate_instances(InstanceIds=[instance])
        hypervisor.reconcile()
        assert hypervisor.running_instances() == []
