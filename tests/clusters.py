"""A small cluster in the emulated account, as the Pulumi program creates it: buckets, an empty group, a manifest."""

import base64
import json
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from infra.packaging.user_data import user_data
from rehearsal.aws.faults import Capacity
from rehearsal.aws.process import ACCOUNT, EmulatedAws
from tests.manifests import MANIFEST
from tests.polling import eventually
from trainyard.aws import tags
from trainyard.aws.clients import client
from trainyard.aws.reservations import create_reservation
from trainyard.aws.s3 import Bucket
from trainyard.config.project import NAME
from trainyard.models.events import AgentEvent, HealthCheckEvent, PlaybookEvent, ServiceEvent
from trainyard.models.health_check import NodeMeasurements
from trainyard.models.layout import HEAD_EVENTS, RunLayout, chunk_key, chunk_prefix
from trainyard.models.layout import MANIFEST as MANIFEST_OBJECT
from trainyard.models.manifest import Manifest, Subnet, WorkerGroup
from trainyard.models.run import RunRecord
from trainyard.models.startup_failures import PLAYBOOK_RETRY_SECONDS
from trainyard.node.identity import Node

UBUNTU_PARAMETER = "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"
_numbers = count(1)


@dataclass
class Cluster:
    """The cluster of one stack, with methods that write events as its nodes do."""

    stack: str
    manifest: Manifest
    data: Bucket
    staging: Bucket

    @property
    def stack_tag(self) -> str:
        """The value of the tag that all resources of the stack have."""
        return self.manifest.stack_tag

    @property
    def group(self) -> str:
        """Name of the first Auto Scaling group."""
        return self.manifest.groups[0].autoscaling_group

    def add_group(self, name: str, **changes: Any) -> WorkerGroup:
        """Add a worker group like the first group; `changes` are fields of the new group."""
        group_name = f"{self.stack}-{name}"
        first = self.manifest.groups[0]
        create_group(self.manifest.region, group_name, self.stack, first.subnets[0].id)
        group = first.model_copy(update={"name": name, "autoscaling_group": group_name, **changes})
        self.set_groups((*self.manifest.groups, group))
        return group

    def set_groups(self, groups: tuple[WorkerGroup, ...]) -> None:
        """Write a manifest with these worker groups."""
        self.manifest = self.manifest.model_copy(update={"groups": groups})
        self.staging.write(MANIFEST_OBJECT, self.manifest.model_dump_json().encode())

    @property
    def autoscaling(self) -> Any:
        """A boto3 client of Auto Scaling."""
        return client("autoscaling", self.manifest.region)

    def describe_group(self, group: str | None = None) -> dict[str, Any]:
        """Return the description of an Auto Scaling group; default: the first group."""
        name = group or self.group
        response = self.autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=[name])
        description: dict[str, Any] = response["AutoScalingGroups"][0]
        return description

    def members(self, group: str | None = None) -> list[str]:
        """Return the instance ids of a group's members."""
        return [instance["InstanceId"] for instance in self.describe_group(group)["Instances"]]

    def lease_end(self) -> float | None:
        """Return the Unix time at which the lease terminates the workers; None without a lease."""
        response = self.autoscaling.describe_scheduled_actions(AutoScalingGroupName=self.group)
        actions = response["ScheduledUpdateGroupActions"]
        return actions[0]["StartTime"].timestamp() if actions else None

    def launch_head(self) -> str:
        """Return the instance id of the head; create its Auto Scaling group first if it does not exist."""
        name = self.manifest.head_autoscaling_group
        if not self.autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"]:
            create_group(self.manifest.region, name, self.stack, self.manifest.groups[0].subnets[0].id, size=1)
        members = self.describe_group(name)["Instances"]
        heads = [each["InstanceId"] for each in members if not each["LifecycleState"].startswith("Terminating")]
        return str(heads[0])

    def replace_head(self) -> str:
        """Terminate the head, and return the instance id of the head that AWS launches."""
        client("ec2", self.manifest.region).terminate_instances(InstanceIds=[self.launch_head()])
        return self.launch_head()

    def write_head_ready_events(self) -> None:
        """Write the event of a head whose controller has started."""
        fields = {"service": "controller", "address": "127.77.9.2"}
        head = self.launch_head()
        event = ServiceEvent.model_validate({**event_fields(head, "head"), **fields})
        self._write(self.staging, HEAD_EVENTS, head, event)

    def write_head_failure_events(self, message: str) -> None:
        """Write events of a head whose playbook fails for longer than a launch waits for a retry."""
        head = self.launch_head()
        for after in (0.0, PLAYBOOK_RETRY_SECONDS):
            event = PlaybookEvent.model_validate(
                {**event_fields(head, "head", after), "status": "failed", "message": message}
            )
            self._write(self.staging, HEAD_EVENTS, head, event)

    def write_agent_event(
        self,
        run: str,
        node: str,
        state: str,
        attempt: int,
        failures: tuple[Any, ...] = (),
        address: str = "127.77.9.9",
    ) -> None:
        """Write an AgentEvent of a worker."""
        event = AgentEvent.model_validate(
            {
                **event_fields(node, "worker"),
                "run": run,
                "attempt": attempt,
                "state": state,
                "address": address,
                "failures": failures,
            }
        )
        self.write_event(run, node, event)

    def write_playbook_event(self, run: str, node: str, status: str, message: str = "", after: float = 0.0) -> None:
        """Write a PlaybookEvent of a worker. `after`: seconds from now, by the node's clock."""
        event = PlaybookEvent.model_validate(
            {**event_fields(node, "worker", after), "status": status, "message": message}
        )
        self.write_event(run, node, event)

    def write_playbook_failure_events(self, run: str, node: str, message: str) -> None:
        """Write events of a worker whose playbook fails for longer than a launch waits for a retry."""
        for after in (0.0, PLAYBOOK_RETRY_SECONDS):
            self.write_playbook_event(run, node, "failed", message, after)

    def write_health_check_event(self, run: str, node: str, check: int, **fields: Any) -> None:
        """Write a HealthCheckEvent of a worker; without `fields`, the worker passes the check."""
        measurements = NodeMeasurements(torch="2.15.0", network="gloo", matmul_tflops=0.1, seconds=5.0)
        event = {
            **event_fields(node, "worker"),
            "run": run,
            "number": check,
            "group": "workers",
            "measurements": measurements,
            **fields,
        }
        self.write_event(run, node, HealthCheckEvent.model_validate(event))

    def write_event(self, run: str, node: str, event: Any) -> None:
        """Write an event of a worker to the event stream of the run."""
        self._write(self.data, RunLayout(run).events, node, event)

    def _write(self, bucket: Bucket, stream: str, node: str, event: Any) -> None:
        key = chunk_key(chunk_prefix(stream, node, "0001", f"test{next(_numbers):06d}"), 0)
        bucket.write(key, event.model_dump_json().encode())

    def create_run_record(self, *, created: float | None = None, minutes: float = 60.0) -> RunRecord:
        """Return a run record. `created`: Unix time in seconds; `minutes`: time until the deadline."""
        created_time = time.time() if created is None else created
        group = self.manifest.groups[0]
        return RunRecord(
            run=f"run-{next(_numbers)}",
            created=created_time,
            deadline=created_time + minutes * 60,
            manifest_digest=self.manifest.digest(),
            nodes=self.manifest.nodes,
            processes_per_node=group.processes_per_node,
            job=self.manifest.job,
            limits=self.manifest.limits,
        )

    def hold_capacity(self, instances: int) -> str:
        """Reserve capacity in the zone of the first subnet, as `trainyard reserve` does; return its id."""
        group = self.manifest.groups[0]
        return create_reservation(
            self.manifest.region,
            instance_type=group.instance_type,
            zone=group.subnets[0].zone,
            instances=instances,
            end=time.time() + 86400,
            placement_group_arn=None,
            tags=tags.held_capacity_tags(self.manifest.stack_tag),
            token=self.stack,
        ).id

    def launch_instances(self, nodes: int) -> list[str]:
        """Launch instances in the first group, as a launch does. Returns their ids."""
        response = self.autoscaling.launch_instances(
            AutoScalingGroupName=self.group,
            RequestedCapacity=nodes,
            ClientToken=f"token-{next(_numbers)}",
            SubnetIds=[self.manifest.groups[0].subnets[0].id],
        )
        return [name for group in response["Instances"] for name in group["InstanceIds"]]


def event_fields(node: str, role: str, after: float = 0.0) -> dict[str, Any]:
    """Return the fields that all events have. `after`: seconds from now."""
    return {"time": time.time() + after, "instance": node, "role": role, "boot": "0001"}


def worker_identity(region: str, bundle: Path | str, group: str = "workers") -> Node:
    """Return the identity of a worker at its first boot."""
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


def ubuntu_image_id(region: str) -> str:
    """Return the id of the Ubuntu AMI."""
    return str(client("ssm", region).get_parameter(Name=UBUNTU_PARAMETER)["Parameter"]["Value"])


def create_worker_template_version(region: str, stack: str, manifest_uri: str) -> None:
    """Add a version to the launch template, and the group's policy, as the Pulumi program sets them for Spot."""
    ec2 = client("ec2", region)
    group = ec2.create_security_group(GroupName=stack, Description=stack, VpcId=_vpc_of(region, stack))["GroupId"]
    text = user_data("worker", "workers", manifest_uri, region, ACCOUNT, Path(__file__).parents[1])
    instance_tags = [
        {"Key": key, "Value": value} for key, value in ((tags.STACK, tags.stack_tag(NAME, stack)), ("team", "line"))
    ]
    key = client("kms", region).create_key()["KeyMetadata"]["Arn"]
    ebs = {"VolumeType": "gp3", "VolumeSize": 40, "Encrypted": True, "KmsKeyId": key, "DeleteOnTermination": True}
    ec2.create_launch_template_version(
        LaunchTemplateName=stack,
        LaunchTemplateData={
            "ImageId": ubuntu_image_id(region),
            "InstanceType": "c7i.xlarge",
            "IamInstanceProfile": {"Name": stack},
            "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1},
            "NetworkInterfaces": [{"DeviceIndex": 0, "Groups": [group], "DeleteOnTermination": True}],
            "BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": ebs}],
            "TagSpecifications": [{"ResourceType": kind, "Tags": instance_tags} for kind in ("instance", "volume")],
            "UserData": base64.b64encode(text.encode()).decode(),
        },
    )
    template = {"LaunchTemplateName": stack, "Version": "$Latest"}
    distribution: dict[str, Any] = {"OnDemandBaseCapacity": 0, "OnDemandPercentageAboveBaseCapacity": 0}
    distribution["SpotAllocationStrategy"] = "price-capacity-optimized"
    policy = {"LaunchTemplate": {"LaunchTemplateSpecification": template}, "InstancesDistribution": distribution}
    client("autoscaling", region).update_auto_scaling_group(AutoScalingGroupName=stack, MixedInstancesPolicy=policy)


def _vpc_of(region: str, stack: str) -> str:
    groups = client("autoscaling", region).describe_auto_scaling_groups(AutoScalingGroupNames=[stack])
    subnet = groups["AutoScalingGroups"][0]["VPCZoneIdentifier"]
    return str(client("ec2", region).describe_subnets(SubnetIds=[subnet])["Subnets"][0]["VpcId"])


def create_instance_profile(name: str) -> None:
    """Create an instance profile with a role that allows all API calls of a node."""
    iam = client("iam", "us-east-1")
    trust = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "ec2.amazonaws.com"}}
    permissions = {"Effect": "Allow", "Action": ["s3:*", "autoscaling:*"], "Resource": "*"}
    iam.create_role(RoleName=name, AssumeRolePolicyDocument=_policy(trust))
    iam.put_role_policy(RoleName=name, PolicyName=name, PolicyDocument=_policy(permissions))
    iam.create_instance_profile(InstanceProfileName=name)
    iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)


def create_group(region: str, name: str, template: str, subnet: str, size: int = 0) -> None:
    """Create an Auto Scaling group with `size` instances and a maximum size of four."""
    client("autoscaling", region).create_auto_scaling_group(
        AutoScalingGroupName=name,
        MinSize=size,
        MaxSize=4,
        LaunchTemplate={"LaunchTemplateName": template, "Version": "1"},
        VPCZoneIdentifier=subnet,
    )


def _create_termination(region: str, schedule_group: str) -> None:
    """Create a schedule group and the role that its schedules assume, unless it exists."""
    client("scheduler", region).create_schedule_group(Name=schedule_group)
    iam, role = client("iam", region), MANIFEST.termination.role_arn.rpartition("/")[2]
    service = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "scheduler.amazonaws.com"}}
    actions = ["autoscaling:UpdateAutoScalingGroup", "ec2:CancelCapacityReservation"]
    with suppress(iam.exceptions.EntityAlreadyExistsException):
        iam.create_role(RoleName=role, AssumeRolePolicyDocument=_policy(service))
        allowed = _policy({"Effect": "Allow", "Action": actions, "Resource": "*"})
        iam.put_role_policy(RoleName=role, PolicyName="termination", PolicyDocument=allowed)


def _policy(statement: dict[str, Any]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


def create_cluster(region: str, stack: str = "", **job: Any) -> Cluster:
    """Create a cluster; `stack`: its name, else generated; `job` changes fields of the manifest's job."""
    stack = stack or f"stack-{next(_numbers)}"
    s3, ec2 = client("s3", region), client("ec2", region)
    for role in ("data", "staging"):
        s3.create_bucket(Bucket=f"{stack}-{role}")
        tag_set = [
            {"Key": tags.STACK, "Value": tags.stack_tag(NAME, stack)},
            {"Key": tags.ROLE, "Value": f"{role}-bucket"},
        ]
        s3.put_bucket_tagging(Bucket=f"{stack}-{role}", Tagging={"TagSet": tag_set})
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnets = tuple(
        Subnet(id=ec2.create_subnet(VpcId=vpc, CidrBlock=cidr, AvailabilityZone=zone)["Subnet"]["SubnetId"], zone=zone)
        for cidr, zone in (("10.0.0.0/20", "us-east-1a"), ("10.0.16.0/20", "us-east-1b"))
    )
    image = ubuntu_image_id(region)
    ec2.create_launch_template(
        LaunchTemplateName=stack, LaunchTemplateData={"ImageId": image, "InstanceType": "c7i.xlarge"}
    )
    create_group(region, stack, stack, subnets[0].id)
    termination = MANIFEST.termination.model_copy(update={"schedule_group": f"{stack}-termination"})
    _create_termination(region, termination.schedule_group)
    group = MANIFEST.groups[0].model_copy(update={"autoscaling_group": stack, "subnets": subnets})
    job_fields = {"data_uri": f"s3://{stack}-data/datasets/d/", **job}
    manifest = MANIFEST.model_copy(
        update={
            "stack": stack,
            "region": region,
            "data_bucket": f"{stack}-data",
            "staging_bucket": f"{stack}-staging",
            "head_autoscaling_group": f"{stack}-head",
            "termination": termination,
            "groups": (group,),
            "job": MANIFEST.job.model_copy(update=job_fields),
        }
    )
    cluster = Cluster(stack, manifest, Bucket(f"{stack}-data", region), Bucket(f"{stack}-staging", region))
    cluster.staging.write(MANIFEST_OBJECT, manifest.model_dump_json().encode())
    return cluster


def add_archive_rule(bucket: str, days: int) -> None:
    """Add the lifecycle rule that moves tagged objects to Deep Archive `days` after they were written."""
    rule = {
        "ID": "archive-old",
        "Status": "Enabled",
        "Filter": {"Tag": {"Key": tags.ARCHIVE, "Value": tags.OLD}},
        "Transitions": [{"Days": days, "StorageClass": "DEEP_ARCHIVE"}],
    }
    client("s3", MANIFEST.region).put_bucket_lifecycle_configuration(
        Bucket=bucket,
        LifecycleConfiguration={"Rules": [rule]},
        TransitionDefaultMinimumObjectSize="varies_by_storage_class",
    )


def capacity_limit(account: EmulatedAws, additional: int) -> Capacity:
    """Return a capacity fault that allows this number of additional workers.

    Running instances count, and unused capacity of reservations, which other tests may have left.
    """

    def is_terminating() -> bool:
        return any(instance.state in {"shutting-down", "stopping"} for instance in account.instances())

    eventually(lambda: not is_terminating(), "the end of instances, which use capacity until then")
    running = [instance for instance in account.instances() if instance.state in {"pending", "running"}]
    workers = sum(instance.instance_type == "c7i.xlarge" for instance in running)
    active = [{"Name": "state", "Values": ["active"]}, {"Name": "instance-type", "Values": ["c7i.xlarge"]}]
    response = client("ec2", account.region).describe_capacity_reservations(Filters=active)
    unused = sum(each["AvailableInstanceCount"] for each in response["CapacityReservations"])
    return Capacity(limit=workers + unused + additional, instance_type="c7i.xlarge")
