"""A small stack with boto3, in place of the Pulumi program, for tests of the selftest."""

import time
from pathlib import Path
from typing import Any

import boto3
import yaml

from tests.manifests import MANIFEST
from trainyard.aws import tags
from trainyard.aws.reservations import cancel_reservation, create_reservation, find_reservations
from trainyard.aws.s3 import Bucket
from trainyard.models.layout import CURRENT_RUN, RunLayout
from trainyard.models.layout import MANIFEST as MANIFEST_OBJECT
from trainyard.models.run import LaunchResult, Outcome
from trainyard.operations.run_record import create_run_record

ZONE = "us-east-1a"
UBUNTU_PARAMETER = "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"
DATASET = "datasets/python-stdlib/index.json"


class Stack:
    """The stack of a folder with project file and stack file. `settings`: value of `trainyard:cluster`."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        config = yaml.safe_load((folder / f"Pulumi.{name}.yaml").read_text())["config"]
        self.region, self.settings = config["aws:region"], config.get("trainyard:cluster")
        self.data, self.staging = (Bucket(f"{name}-{role}", self.region) for role in ("data", "staging"))
        self.ec2: Any = boto3.client("ec2", region_name=self.region)
        self.autoscaling: Any = boto3.client("autoscaling", region_name=self.region)

    def up(self, change: dict[str, Any]) -> None:
        """Create both buckets, and on GPU stacks a reservation and an instance; write a run that has ended."""
        self._create_bucket(self.data, tags.DATA_BUCKET)
        self._create_bucket(self.staging, tags.STAGING_BUCKET)
        if self.data.find(DATASET) is None or change.get("rewrite"):
            self.data.write(DATASET, b"{}")
        self._create_group()
        group = MANIFEST.groups[0].model_copy(update={"autoscaling_group": self.name})
        fields = {"stack": self.name, "data_bucket": self.data.name, "staging_bucket": self.staging.name}
        manifest = MANIFEST.model_copy(update={**fields, "groups": (group,)})
        self.staging.write(MANIFEST_OBJECT, manifest.model_dump_json().encode())
        is_gpu = self.settings["instance_type"] != "c7i.xlarge"
        reservations, nodes = self._launch_gpu_node(change) if is_gpu else ([], [])
        record = create_run_record(MANIFEST, time.time()).model_copy(update={"reservations": tuple(reservations)})
        layout, content = RunLayout(record.run), record.model_dump_json().encode()
        self.data.write(layout.record, content)
        self.staging.write(CURRENT_RUN, content)
        end = time.time() + change.get("run_seconds", 0)
        outcome = Outcome(state=change.get("outcome", "succeeded"), reason="r", attempts=1, ended_at=end)
        self.data.write(layout.outcome, outcome.model_dump_json().encode())
        result = LaunchResult(run=record.run, nodes=tuple(nodes), data_uri="", run_uri="", phases={"startup": 3.5})
        self.staging.write("outputs", result.model_dump_json().encode())

    def _create_bucket(self, bucket: Bucket, role: str) -> None:
        if bucket.exists():
            return
        s3 = boto3.client("s3", region_name=self.region)
        s3.create_bucket(Bucket=bucket.name)
        tag_set = [{"Key": key, "Value": value} for key, value in self._tags(role).items()]
        s3.put_bucket_tagging(Bucket=bucket.name, Tagging={"TagSet": tag_set})

    def _create_group(self) -> None:
        template = {"ImageId": self._image(), "InstanceType": "c7i.xlarge"}
        self.ec2.create_launch_template(LaunchTemplateName=self.name, LaunchTemplateData=template)
        self.autoscaling.create_auto_scaling_group(
            AutoScalingGroupName=self.name,
            MinSize=0,
            MaxSize=4,
            LaunchTemplate={"LaunchTemplateName": self.name},
            AvailabilityZones=[ZONE],
        )

    def _image(self) -> str:
        ssm = boto3.client("ssm", region_name=self.region)
        return str(ssm.get_parameter(Name=UBUNTU_PARAMETER)["Parameter"]["Value"])

    def _tags(self, role: str) -> dict[str, str]:
        return {tags.STACK: self.name, tags.ROLE: role}

    def _launch_gpu_node(self, change: dict[str, Any]) -> tuple[list[str], list[str]]:
        """Launch one node; return the ids of its reservation, none for Spot, and of the node."""
        tag_list = [{"Key": key, "Value": value} for key, value in self._tags("workers").items()]
        request: dict[str, Any] = {
            "ImageId": self._image(),
            "InstanceType": self.settings["instance_type"],
            "MinCount": 1,
            "MaxCount": 1,
            "Placement": {"AvailabilityZone": ZONE},
            "TagSpecifications": [{"ResourceType": "instance", "Tags": tag_list}],
        }
        reservations = []
        if "spot" in self.settings["capacity"]:
            request["InstanceMarketOptions"] = {"MarketType": "spot"}
        else:
            reservations.append(self._reserve())
            if not change.get("outside"):
                target = {"CapacityReservationTarget": {"CapacityReservationId": reservations[0]}}
                request["CapacityReservationSpecification"] = target
        return reservations, [self.ec2.run_instances(**request)["Instances"][0]["InstanceId"]]

    def _reserve(self) -> str:
        return create_reservation(
            self.region,
            instance_type=self.settings["instance_type"],
            zone=ZONE,
            instances=1,
            end=time.time() + 3600,
            placement_group_arn=None,
            tags=self._tags("workers"),
            token=str(time.time()),
        ).id

    def outputs(self) -> dict[str, Any]:
        """Return the stack's outputs."""
        manifest = f"s3://{self.staging.name}/{MANIFEST_OBJECT}"
        return {"manifest": manifest, "launch": self.staging.read("outputs").decode()}

    def destroy(self) -> None:
        """Delete everything except the data bucket."""
        for reservation in find_reservations(self.region, {tags.STACK: self.name}):
            cancel_reservation(self.region, reservation.id)
        stack_filter = {"Name": f"tag:{tags.STACK}", "Values": [self.name]}
        for part in self.ec2.describe_instances(Filters=[stack_filter])["Reservations"]:
            self.ec2.terminate_instances(InstanceIds=[each["InstanceId"] for each in part["Instances"]])
        if self.staging.exists():
            self.autoscaling.delete_auto_scaling_group(AutoScalingGroupName=self.name, ForceDelete=True)
            self.ec2.delete_launch_template(LaunchTemplateName=self.name)
            bucket = boto3.resource("s3", region_name=self.region).Bucket(self.staging.name)
            bucket.objects.delete()
            bucket.delete()
