"""A small cluster in the emulated account as the Pulumi program would leave it: buckets, an empty group, a manifest."""

import base64
import json
import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from infra.packaging.user_data import user_data
from rehearsal.aws.faults import Capacity
from rehearsal.aws.process import EmulatedAws
from tests.manifests import MANIFEST
from trainyard.aws.s3 import Bucket, client
from trainyard.models.events import AgentEvent, PlayEvent, ServiceEvent, VerificationEvent
from trainyard.models.health_check import Measured
from trainyard.models.layout import HEAD_EVENTS, RunLayout, chunk_key, chunk_prefix
from trainyard.models.layout import MANIFEST as MANIFEST_OBJECT
from trainyard.models.manifest import Manifest, WorkerGroup
from trainyard.models.run import RunRecord
from trainyard.node.identity import Node
from trainyard.operations.startup import OUTAGE_SECONDS

UBUNTU = "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"
_numbers = count(1)


@dataclass
class Cluster:
    """One stack's cluster, and the ways in which its nodes speak."""

    stack: str
    manifest: Manifest
    data: Bucket
    staging: Bucket

    @property
    def group(self) -> str:
        return self.manifest.groups[0].autoscaling_group

    def add_group(self, name: str, **changes: Any) -> WorkerGroup:
        """Another group of workers like the first one; `changes` are fields of it."""
        made = f"{self.stack}-{name}"
        first = self.manifest.groups[0]
        create_group(self.manifest.region, made, self.stack, first.subnets[0])
        group = first.model_copy(update={"name": name, "autoscaling_group": made, **changes})
        self.want((*self.manifest.groups, group))
        return group

    def want(self, groups: tuple[WorkerGroup, ...]) -> None:
        """The manifest says these groups from now on."""
        self.manifest = self.manifest.model_copy(update={"groups": groups})
        self.staging.write(MANIFEST_OBJECT, self.manifest.model_dump_json().encode())

    @property
    def autoscaling(self) -> Any:
        return client("autoscaling", self.manifest.region)

    def described(self, group: str | None = None) -> dict[str, Any]:
        """One group, the first where none is named, as Auto Scaling has it."""
        name = group or self.group
        found: dict[str, Any] = self.autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=[name])
        described: dict[str, Any] = found["AutoScalingGroups"][0]
        return described

    def members(self, group: str | None = None) -> list[str]:
        return [instance["InstanceId"] for instance in self.described(group)["Instances"]]

    def lease(self) -> float | None:
        """When the lease ends the workers, Unix time; None without one."""
        found = self.autoscaling.describe_scheduled_actions(AutoScalingGroupName=self.group)
        actions = found["ScheduledUpdateGroupActions"]
        return actions[0]["StartTime"].timestamp() if actions else None

    def head_is_ready(self) -> None:
        for service in ("rendezvous", "controller"):
            event = ServiceEvent.model_validate(
                {**stamp("i-head", "head"), "service": service, "address": self.manifest.head.address}
            )
            self._say(self.staging, HEAD_EVENTS, "i-head", event)

    def head_fails_for_good(self, message: str, head: str = "i-head") -> None:
        for after in (0.0, OUTAGE_SECONDS):
            event = PlayEvent.model_validate({**stamp(head, "head", after), "status": "failed", "message": message})
            self._say(self.staging, HEAD_EVENTS, head, event)

    def agent(self, run: str, node: str, state: str, attempt: int, failures: tuple[Any, ...] = ()) -> None:
        event = AgentEvent.model_validate(
            {
                **stamp(node, "worker"),
                "run": run,
                "attempt": attempt,
                "state": state,
                "address": "127.77.9.9",
                "failures": failures,
            }
        )
        self.say(run, node, event)

    def play(self, run: str, node: str, status: str, message: str = "", after: float = 0.0) -> None:
        """`after`: seconds from now, as the node's clock says it."""
        event = PlayEvent.model_validate({**stamp(node, "worker", after), "status": status, "message": message})
        self.say(run, node, event)

    def play_fails_for_good(self, run: str, node: str, message: str) -> None:
        """A unit starts a failed play again: for longer than anything is away for a moment."""
        for after in (0.0, OUTAGE_SECONDS):
            self.play(run, node, "failed", message, after)

    def checked(self, run: str, node: str, check: int, **told: Any) -> None:
        """What a node's agent tells of a check; nothing given: it came through."""
        seen = Measured(torch="2.15.0", network="gloo", matmul_tflops=0.1, seconds=5.0)
        event = {**stamp(node, "worker"), "run": run, "check": check, "group": "workers", "measured": seen, **told}
        self.say(run, node, VerificationEvent.model_validate(event))

    def say(self, run: str, node: str, event: Any) -> None:
        self._say(self.data, RunLayout(run).events, node, event)

    def _say(self, bucket: Bucket, stream: str, node: str, event: Any) -> None:
        key = chunk_key(chunk_prefix(stream, node, "0001", f"test{next(_numbers):06d}"), 0)
        bucket.write(key, event.model_dump_json().encode())

    def record(self, *, created: float | None = None, minutes: float = 60.0) -> RunRecord:
        began = time.time() if created is None else created
        group = self.manifest.groups[0]
        return RunRecord(
            run=f"run-{next(_numbers)}",
            created=began,
            deadline=began + minutes * 60,
            manifest=self.manifest.digest(),
            nodes=self.manifest.nodes,
            processes_per_node=group.processes_per_node,
            job=self.manifest.job,
            limits=self.manifest.limits,
        )

    def launch(self, nodes: int) -> list[str]:
        """Nodes as a launch leaves them."""
        answer = self.autoscaling.launch_instances(
            AutoScalingGroupName=self.group,
            RequestedCapacity=nodes,
            ClientToken=f"token-{next(_numbers)}",
            SubnetIds=[self.manifest.groups[0].subnets[0]],
        )
        return [name for part in answer["Instances"] for name in part["InstanceIds"]]


def stamp(node: str, role: str, after: float = 0.0) -> dict[str, Any]:
    return {"time": time.time() + after, "instance": node, "role": role, "boot": "0001"}


def worker(region: str, bundle: Path | str, group: str = "workers") -> Node:
    """The first of a group, at its first boot."""
    return Node(
        role="worker",
        group=group,
        instance="i-1",
        address="127.0.0.1",
        boot="0001",
        region=region,
        manifest_uri="",
        bundle=str(bundle),
    )


def ubuntu(region: str) -> str:
    """Id of Ubuntu's image."""
    return str(client("ssm", region).get_parameter(Name=UBUNTU)["Parameter"]["Value"])


def workers_template(region: str, stack: str, manifest_uri: str) -> None:
    """The launch template of that name from now on asks what the Pulumi program's does of one with a GPU's fabric."""
    ec2 = client("ec2", region)
    group = ec2.create_security_group(GroupName=stack, Description=stack, VpcId=_vpc_of(region, stack))["GroupId"]
    text = user_data("worker", "workers", manifest_uri, region, Path(__file__).parents[1])
    named = [{"Key": key, "Value": value} for key, value in (("trainyard:stack", stack), ("team", "line"))]
    key = client("kms", region).create_key()["KeyMetadata"]["Arn"]
    ebs = {"VolumeType": "gp3", "VolumeSize": 40, "Encrypted": True, "KmsKeyId": key, "DeleteOnTermination": True}
    ec2.create_launch_template_version(
        LaunchTemplateName=stack,
        LaunchTemplateData={
            "ImageId": ubuntu(region),
            "InstanceType": "c7i.xlarge",
            "IamInstanceProfile": {"Name": stack},
            "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1},
            "NetworkInterfaces": [{"DeviceIndex": 0, "Groups": [group], "DeleteOnTermination": True}],
            "BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": ebs}],
            "TagSpecifications": [{"ResourceType": kind, "Tags": named} for kind in ("instance", "volume")],
            "InstanceMarketOptions": {"MarketType": "spot", "SpotOptions": {"SpotInstanceType": "one-time"}},
            "UserData": base64.b64encode(text.encode()).decode(),
        },
    )


def _vpc_of(region: str, stack: str) -> str:
    groups = client("autoscaling", region).describe_auto_scaling_groups(AutoScalingGroupNames=[stack])
    subnet = groups["AutoScalingGroups"][0]["VPCZoneIdentifier"]
    return str(client("ec2", region).describe_subnets(SubnetIds=[subnet])["Subnets"][0]["VpcId"])


def profile(name: str) -> None:
    """A role that may do all that a node asks for."""
    iam = client("iam", "us-east-1")
    trust = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "ec2.amazonaws.com"}}
    rights = {"Effect": "Allow", "Action": ["s3:*", "autoscaling:*"], "Resource": "*"}
    iam.create_role(RoleName=name, AssumeRolePolicyDocument=_policy(trust))
    iam.put_role_policy(RoleName=name, PolicyName=name, PolicyDocument=_policy(rights))
    iam.create_instance_profile(InstanceProfileName=name)
    iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)


def _policy(statement: dict[str, Any]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


def create_group(region: str, name: str, template: str, subnet: str) -> None:
    """An empty Auto Scaling group of at most four nodes."""
    client("autoscaling", region).create_auto_scaling_group(
        AutoScalingGroupName=name,
        MinSize=0,
        MaxSize=4,
        DesiredCapacity=0,
        LaunchTemplate={"LaunchTemplateName": template, "Version": "$Latest"},
        VPCZoneIdentifier=subnet,
    )


def build(region: str, **job: Any) -> Cluster:
    """Make one; `job` changes fields of the manifest's job."""
    stack = f"stack-{next(_numbers)}"
    s3, ec2 = client("s3", region), client("ec2", region)
    for role in ("data", "staging"):
        s3.create_bucket(Bucket=f"{stack}-{role}")
        tags = [
            {"Key": "trainyard:stack", "Value": stack},
            {"Key": "trainyard:role", "Value": f"{role}-bucket"},
        ]
        s3.put_bucket_tagging(Bucket=f"{stack}-{role}", Tagging={"TagSet": tags})
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.0.0/20", AvailabilityZone="us-east-1a")["Subnet"]["SubnetId"]
    image = ubuntu(region)
    ec2.create_launch_template(
        LaunchTemplateName=stack, LaunchTemplateData={"ImageId": image, "InstanceType": "c7i.xlarge"}
    )
    create_group(region, stack, stack, subnet)
    group = MANIFEST.groups[0].model_copy(update={"autoscaling_group": stack, "subnets": (subnet,)})
    asked = {"data_uri": f"s3://{stack}-data/datasets/d/", **job}
    manifest = MANIFEST.model_copy(
        update={
            "stack": stack,
            "region": region,
            "data_bucket": f"{stack}-data",
            "staging_bucket": f"{stack}-staging",
            "groups": (group,),
            "job": MANIFEST.job.model_copy(update=asked),
        }
    )
    made = Cluster(stack, manifest, Bucket(f"{stack}-data", region), Bucket(f"{stack}-staging", region))
    made.staging.write(MANIFEST_OBJECT, manifest.model_dump_json().encode())
    return made


def room_for(account: EmulatedAws, more: int) -> Capacity:
    """A shortage that lets so many more nodes be launched: what is stopped or gone takes no room."""
    running = [one for one in account.instances() if one.state in {"pending", "running"}]
    held = sum(one.instance_type == "c7i.xlarge" for one in running)
    return Capacity(limit=held + more, instance_type="c7i.xlarge")
