"""What the hypervisor boots from, and what it can't."""

from pathlib import Path
from typing import Any

import pytest

from rehearsal.aws.process import EmulatedAws
from rehearsal.hypervisor.hypervisor import Hypervisor
from rehearsal.hypervisor.process.backend import ProcessBackend
from tests.clusters import UBUNTU
from tests.conftest import REGION
from tests.polling import eventually
from trainyard.aws.s3 import client


def run(image: str, stack: str) -> str:
    named = [{"ResourceType": "instance", "Tags": [{"Key": "trainyard:stack", "Value": stack}]}]
    asked: dict[str, Any] = {"ImageId": image, "InstanceType": "t3.medium", "TagSpecifications": named}
    return str(client("ec2", REGION).run_instances(MinCount=1, MaxCount=1, **asked)["Instances"][0]["InstanceId"])


def test_an_image_whose_disk_is_elsewhere_is_told(own_account: EmulatedAws, tmp_path: Path) -> None:
    """The account outlives a rehearsal, and with it the image; the disk does not."""
    ec2 = client("ec2", REGION)
    source = run(client("ssm", REGION).get_parameter(Name=UBUNTU)["Parameter"]["Value"], "earlier")
    ec2.stop_instances(InstanceIds=[source])
    image = ec2.create_image(InstanceId=source, Name="elsewhere")["ImageId"]
    eventually(lambda: ec2.describe_images(ImageIds=[image])["Images"][0]["State"] == "available", "the image", 10)
    made = run(image, "later")
    try:
        hypervisor = Hypervisor(own_account, ProcessBackend(tmp_path), "later", print)
        with pytest.raises(
            RuntimeError, match=f"{made} boots from {image}, made of {source}, whose disk is not in this"
        ):
            hypervisor.reconcile()
    finally:
        ec2.terminate_instances(InstanceIds=[made, source])
        ec2.deregister_image(ImageId=image, DeleteAssociatedSnapshots=True)
