"""The instance that becomes the workers' image: launched on what their launch template says, watched, ended."""

import base64
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from trainyard.aws import tags
from trainyard.aws.s3 import client
from trainyard.models.events import PlayEvent
from trainyard.models.layout import BAKE_EVENTS
from trainyard.models.manifest import WorkerGroup
from trainyard.models.streams import Cursor, node_events
from trainyard.operations import startup as bringup
from trainyard.operations.cluster import Cluster
from trainyard.operations.errors import BringUpError, LaunchError
from trainyard.operations.images import Tags
from trainyard.operations.progress import Display
from trainyard.operations.startup import Deadline, Plays, console_of, tell

TRIES, PAUSE_SECONDS = 5, 2.0
_COMMAND = re.compile(r"(--role )worker( --group \S+ --manifest \S+ --region \S+)$", re.MULTILINE)
_SAME = ("IamInstanceProfile", "MetadataOptions", "BlockDeviceMappings")
_GONE = {"shutting-down", "terminated"}


@dataclass(frozen=True)
class Template:
    """A worker group's launch template as EC2 has it."""

    data: Mapping[str, Any]

    @property
    def image(self) -> str:
        return str(self.data["ImageId"])

    @property
    def tags(self) -> Tags:
        """Those of its instances."""
        specifications = {each["ResourceType"]: each["Tags"] for each in self.data.get("TagSpecifications", [])}
        return {tag["Key"]: tag["Value"] for tag in specifications.get("instance", [])}

    def user_data(self, until: float) -> str:
        """The workers' own, for a builder that is switched off at `until`, Unix time.

        Raises LaunchError where it is of another tree, which knows no builders.
        """
        text = base64.b64decode(self.data["UserData"]).decode()
        changed, count = _COMMAND.subn(rf"\1builder\2 --until {until:.0f}", text)
        if count != 1 or "--until" not in text:
            raise LaunchError("the workers' launch template was made by an earlier Trainyard: run pulumi up, then bake")
        return changed

    def request(self, group: WorkerGroup, image: str, instance_type: str, until: float, own: Tags) -> dict[str, Any]:
        """What RunInstances is asked for: no placement, no EFA, no spot, all of which a request could not take off a
        template that it names. Reserved capacity of the group's own type is used: it is paid for."""
        reserved = instance_type == group.instance_type
        market = self.data.get("InstanceMarketOptions", {}).get("MarketType")
        asked: dict[str, Any] = {key: self.data[key] for key in _SAME if self.data.get(key)}
        if "MetadataOptions" in asked:  # EC2 tells a state in them, and takes none
            options = asked["MetadataOptions"].items()
            asked["MetadataOptions"] = {key: value for key, value in options if key != "State"}
        if reserved and self.data.get("CapacityReservationSpecification"):
            asked["CapacityReservationSpecification"] = self.data["CapacityReservationSpecification"]
        if reserved and market == "capacity-block":
            asked["InstanceMarketOptions"] = {"MarketType": market}
        named = [{"Key": key, "Value": value} for key, value in own.items()]
        return {
            **asked,
            "ImageId": image,
            "InstanceType": instance_type,
            "MinCount": 1,
            "MaxCount": 1,
            "ClientToken": own[tags.BAKE],
            "UserData": self.user_data(until),
            "InstanceInitiatedShutdownBehavior": "terminate",
            "NetworkInterfaces": [
                {
                    "DeviceIndex": 0,
                    "SubnetId": group.subnets[0],
                    "Groups": self.data["NetworkInterfaces"][0]["Groups"],
                    "DeleteOnTermination": True,
                }
            ],
            "TagSpecifications": [
                {"ResourceType": kind, "Tags": named} for kind in ("instance", "volume", "network-interface")
            ],
        }


def template_of(cluster: Cluster, group: WorkerGroup) -> Template:
    """Raises LaunchError where the group or its template is gone."""
    groups = client("autoscaling", cluster.region).describe_auto_scaling_groups(
        AutoScalingGroupNames=[group.autoscaling_group]
    )["AutoScalingGroups"]
    if not groups:
        raise LaunchError(f"the Auto Scaling group {group.autoscaling_group} is gone: run pulumi up, then bake")
    named = groups[0]["LaunchTemplate"]
    (version,) = client("ec2", cluster.region).describe_launch_template_versions(
        LaunchTemplateId=named["LaunchTemplateId"], Versions=[named.get("Version", "$Default")]
    )["LaunchTemplateVersions"]
    return Template(version["LaunchTemplateData"])


class Builder:
    """One builder, from its launch to its end. `bake` marks it, so that it is found also where the launch's answer got
    lost."""

    def __init__(self, cluster: Cluster, bake: str, show: Display) -> None:
        self._cluster, self._bake, self._show = cluster, bake, show
        self._ec2 = client("ec2", cluster.region)
        self.id: str | None = None

    def tags(self, own: Tags, until: float) -> Tags:
        stack = self._cluster.stack
        mine = {"Name": f"trainyard-{stack}-builder", tags.ROLE: tags.BUILDER, tags.STACK: stack}
        return {**own, **mine, tags.BAKE: self._bake, tags.UNTIL: f"{until:.0f}"}

    def launch(self, request: Mapping[str, Any]) -> str:
        """Raises LaunchError with AWS's reason."""
        try:
            made = self._ec2.run_instances(**request)
        except ClientError as error:
            told = error.response["Error"]
            wanted = request["InstanceType"]
            raise LaunchError(
                f"no builder could be launched: {told['Code']}: {told['Message']} (a {wanted}; --instance-type names "
                "another, which leaves the drivers of the group's hardware to the nodes)"
            ) from None
        self.id = made["Instances"][0]["InstanceId"]
        return self.id

    def wait_until_clean(self, deadline: Deadline) -> None:
        """Its play has come to its end, the last role of which cleans it. Raises BringUpError when it will not."""
        assert self.id is not None
        assert self._cluster.staging is not None
        cursor = Cursor(self._cluster.staging, f"{BAKE_EVENTS}{self.id}/")
        plays, silent_until, heard = Plays(), time.time() + min(bringup.SILENT_SECONDS, deadline.minutes * 60), False

        def clean() -> bool:
            nonlocal heard
            done = False
            for event in node_events(cursor):
                heard = True
                tell(self._show, event)
                plays.hear(event)
                if plays.failed(event.instance, event.boot):
                    raise BringUpError(f"the builder {event.instance} could not be configured: {plays.message}")
                done = done or (isinstance(event, PlayEvent) and event.status == "ok")
            if not done and self._state() in _GONE:
                raise BringUpError(f"the builder {self.id} has ended before its play had")
            if not heard and time.time() > silent_until:
                console = console_of(self._cluster.region, str(self.id))
                raise BringUpError(f"no sign of the builder {self.id}{console}")
            return done

        deadline.wait(f"the end of the play of the builder {self.id}", clean)

    def stop(self, deadline: Deadline) -> None:
        """Shut it down, its disk whole."""
        self._ec2.stop_instances(InstanceIds=[self.id])
        deadline.wait(f"the stop of the builder {self.id}", lambda: self._state() == "stopped")

    def end(self) -> str:
        """Terminate it, also where nobody has seen its launch's answer; empty, or why it could not be ended."""
        for attempt in range(TRIES):
            try:
                mine = [self.id] if self.id else _found(self._ec2, {tags.BAKE: self._bake})
                if mine:
                    self._ec2.terminate_instances(InstanceIds=mine)
                return ""
            except (BotoCoreError, ClientError) as error:
                reason = str(error)
                time.sleep(attempt * PAUSE_SECONDS)
        name = self.id or f"of tag {tags.BAKE}={self._bake}"
        return (
            f"the builder {name} could not be ended ({reason}). While it runs it ends by itself; to do it now: "
            f"aws ec2 terminate-instances --instance-ids {self.id or 'ID'}"
        )

    def _state(self) -> str:
        """`unknown` while AWS does not know it everywhere yet."""
        try:
            found = self._ec2.describe_instances(InstanceIds=[self.id])["Reservations"]
        except ClientError as error:
            if error.response["Error"]["Code"] == "InvalidInstanceID.NotFound":
                return "unknown"
            raise
        return str(found[0]["Instances"][0]["State"]["Name"]) if found else "unknown"


def end_builders(cluster: Cluster, ended_by: float | None = None) -> list[str]:
    """End the builders that a bake which died has left, those of `ended_by` (Unix time) or all; their ids.

    One that runs ends by itself; one that was stopped already stays.
    """
    ec2 = client("ec2", cluster.region)
    found = _described(ec2, {tags.STACK: cluster.stack, tags.ROLE: tags.BUILDER})
    left = [name for name, until in found.items() if ended_by is None or until <= ended_by]
    if left:
        ec2.terminate_instances(InstanceIds=left)
    return sorted(left)


def _found(ec2: Any, wanted: Tags) -> list[str]:
    return sorted(_described(ec2, wanted))


def _described(ec2: Any, wanted: Tags) -> dict[str, float]:
    """Instance that is not ended -> Unix time until which it may be."""
    filters = [{"Name": f"tag:{key}", "Values": [value]} for key, value in wanted.items()]
    states = {"Name": "instance-state-name", "Values": ["pending", "running", "stopping", "stopped"]}
    found = {}
    for page in ec2.get_paginator("describe_instances").paginate(Filters=[*filters, states]):
        for reservation in page["Reservations"]:
            for instance in reservation["Instances"]:
                named = {tag["Key"]: tag["Value"] for tag in instance.get("Tags", [])}
                found[instance["InstanceId"]] = float(named.get(tags.UNTIL, 0.0))
    return found
