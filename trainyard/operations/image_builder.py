"""The builder: an instance that configures itself like a worker and becomes the workers' image."""

import base64
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from trainyard.aws import autoscaling, ec2, tags
from trainyard.aws.ec2 import Tags, tags_of
from trainyard.aws.tags import tag_specifications
from trainyard.config.shared_settings import RESERVED_MARKETS
from trainyard.models.events import PlaybookEvent
from trainyard.models.layout import BAKE_EVENTS
from trainyard.models.manifest import WorkerGroup
from trainyard.models.startup_failures import NO_EVENTS_TIMEOUT_SECONDS, PlaybookFailures
from trainyard.models.streams import Cursor, node_events
from trainyard.operations.cluster import Cluster
from trainyard.operations.errors import LaunchError, StartupError
from trainyard.operations.progress import Display
from trainyard.operations.startup import Deadline, describe_console, display_event

MAX_ATTEMPTS, RETRY_DELAY_SECONDS = 5, 2.0
_WORKER_COMMAND = re.compile(r"(--role )worker( --group \S+ --manifest \S+ --region \S+ --account \S+)$", re.MULTILINE)
_COPIED_KEYS = ("IamInstanceProfile", "MetadataOptions", "BlockDeviceMappings")
_TERMINATED_STATES = {"shutting-down", "terminated"}


@dataclass(frozen=True)
class LaunchTemplate:
    """The launch template of a worker group. `data`: LaunchTemplateData of the EC2 API."""

    data: Mapping[str, Any]

    @property
    def image(self) -> str:
        """Id of the image that workers boot."""
        return str(self.data["ImageId"])

    @property
    def tags(self) -> Tags:
        """Tags of the group's instances."""
        specifications = {item["ResourceType"]: item for item in self.data.get("TagSpecifications", [])}
        return tags_of(specifications.get("instance", {}))

    def user_data(self, until: float) -> str:
        """Return the workers' user data, changed for a builder that shuts down at `until` (Unix time, seconds).

        Raises LaunchError when another version of Trainyard created the template.
        """
        text = base64.b64decode(self.data["UserData"]).decode()
        changed, count = _WORKER_COMMAND.subn(rf"\1builder\2 --until {until:.0f}", text)
        if count != 1 or "--until" not in text:
            stack = self.tags.get(tags.STACK, "STACK").rpartition("/")[2]
            raise LaunchError(
                "the workers' launch template was created by an earlier version of Trainyard: run trainyard up -s "
                f"{stack}, then trainyard bake -s {stack}"
            )
        return changed

    def request(
        self, group: WorkerGroup, image: str, instance_type: str, until: float, builder_tags: Tags
    ) -> dict[str, Any]:
        """Return the parameters of RunInstances for a builder.

        They have no placement group, EFA or spot market; RunInstances cannot remove these from a template that it
        names. Reserved capacity is used when the builder has the group's instance type, because it is paid for.
        """
        is_reserved = instance_type == group.instance_type
        market = self.data.get("InstanceMarketOptions", {}).get("MarketType")
        options: dict[str, Any] = {key: self.data[key] for key in _COPIED_KEYS if self.data.get(key)}
        if "MetadataOptions" in options:  # the template's description has a State, which RunInstances refuses
            metadata_options = options["MetadataOptions"].items()
            options["MetadataOptions"] = {key: value for key, value in metadata_options if key != "State"}
        if is_reserved and self.data.get("CapacityReservationSpecification"):
            options["CapacityReservationSpecification"] = self.data["CapacityReservationSpecification"]
        if is_reserved and market in RESERVED_MARKETS:
            options["InstanceMarketOptions"] = {"MarketType": market}
        return {
            **options,
            "ImageId": image,
            "InstanceType": instance_type,
            "MinCount": 1,
            "MaxCount": 1,
            "ClientToken": builder_tags[tags.BAKE],
            "UserData": self.user_data(until),
            "InstanceInitiatedShutdownBehavior": "terminate",
            "NetworkInterfaces": [
                {
                    "DeviceIndex": 0,
                    "SubnetId": group.subnets[0].id,
                    "Groups": self.data["NetworkInterfaces"][0]["Groups"],
                    "DeleteOnTermination": True,
                }
            ],
            "TagSpecifications": tag_specifications(builder_tags, ("instance", "volume", "network-interface")),
        }


def read_launch_template(cluster: Cluster, group: WorkerGroup) -> LaunchTemplate:
    """Return the group's launch template. Raises LaunchError when the Auto Scaling group does not exist."""
    groups = autoscaling.describe_groups(cluster.region, [group.autoscaling_group])
    if not groups:
        raise LaunchError(
            f"the Auto Scaling group {group.autoscaling_group} does not exist: run trainyard up -s {cluster.stack}, "
            f"then trainyard bake -s {cluster.stack}"
        )
    template = autoscaling.launch_template_of(groups[0])
    data = ec2.launch_template_data(cluster.region, template["LaunchTemplateId"], template.get("Version", "$Default"))
    return LaunchTemplate(data)


class Builder:
    """One builder, from launch to termination.

    `bake` is a unique id, which tags the instance: it is found even when the response of its launch is lost.
    """

    def __init__(self, cluster: Cluster, bake: str, display: Display) -> None:
        self._cluster, self._bake, self._display = cluster, bake, display
        self._region = cluster.region
        self.id: str | None = None

    def tags(self, stack_tags: Tags, until: float) -> Tags:
        """Return the builder's tags; `until` is its end (Unix time, seconds)."""
        cluster = self._cluster
        name = f"trainyard-{cluster.stack}-builder"
        role_tags = {"Name": name, tags.ROLE: tags.BUILDER, tags.STACK: cluster.stack_tag}
        return {**stack_tags, **role_tags, tags.BAKE: self._bake, tags.UNTIL: f"{until:.0f}"}

    def launch(self, request: Mapping[str, Any]) -> str:
        """Launch the instance; return its id. Raises LaunchError with AWS's reason."""
        try:
            self.id = ec2.run_instance(self._region, request)
        except ClientError as error:
            details = error.response["Error"]
            raise LaunchError(
                f"the builder ({request['InstanceType']}) could not be launched: {details['Code']}: "
                f"{details['Message']}. Try again later, or use another type with --instance-type; nodes then install "
                "the drivers of the group's hardware themselves"
            ) from None
        return self.id

    def wait_until_configured(self, deadline: Deadline) -> None:
        """Wait for the end of the builder's playbook, whose last role removes the builder's identity and logs.

        Raises StartupError when the playbook fails, the instance terminates, or it reports no events.
        """
        assert self.id is not None
        assert self._cluster.staging is not None
        cursor = Cursor(self._cluster.staging, f"{BAKE_EVENTS}{self.id}/")
        failures, has_events = PlaybookFailures(), False
        events_deadline = time.time() + min(NO_EVENTS_TIMEOUT_SECONDS, deadline.minutes * 60)

        def is_configured() -> bool:
            nonlocal has_events
            is_done = False
            for event in node_events(cursor):
                has_events = True
                display_event(self._display, event)
                failures.handle(event)
                if failures.is_final(event.instance, event.boot):
                    message = failures.messages[event.instance, event.boot]
                    raise StartupError(f"the builder {event.instance} could not be configured: {message}")
                is_done = is_done or (isinstance(event, PlaybookEvent) and event.status == "ok")
            if not is_done and self._state() in _TERMINATED_STATES:
                raise StartupError(f"the builder {self.id} terminated before its playbook was complete. Bake again")
            if not has_events and time.time() > events_deadline:
                console = describe_console(self._region, str(self.id))
                raise StartupError(f"no events received from the builder {self.id}{console}")
            return is_done

        deadline.wait_until(f"the playbook of the builder {self.id}", is_configured)

    def stop(self, deadline: Deadline) -> None:
        """Stop the instance and keep its disk."""
        ec2.stop_instance(self._region, str(self.id))
        deadline.wait_until(f"the stop of the builder {self.id}", lambda: self._state() == "stopped")

    def terminate(self) -> str:
        """Terminate the instance, by its tag when its id is unknown; return an empty text, or why it still runs."""
        for number in range(MAX_ATTEMPTS):
            try:
                instances = [self.id] if self.id else sorted(_find_builders(self._region, {tags.BAKE: self._bake}))
                if instances:
                    ec2.terminate_instances(self._region, instances)
                return ""
            except (BotoCoreError, ClientError) as error:
                reason = str(error)
                time.sleep(number * RETRY_DELAY_SECONDS)
        name = self.id or f"with tag {tags.BAKE}={self._bake}"
        return (
            f"the builder {name} could not be terminated ({reason}). A running builder terminates itself later; to do "
            f"it now: aws ec2 terminate-instances --instance-ids {self.id or 'ID'}"
        )

    def _state(self) -> str:
        return ec2.instance_state(self._region, str(self.id))


def terminate_builders(cluster: Cluster, expired_at: float | None = None) -> list[str]:
    """Terminate the builders of bakes that were killed; return their ids.

    `expired_at`: only those whose time ended before this Unix time, else all. A running builder terminates itself; a
    stopped one does not.
    """
    builders = _find_builders(cluster.region, {tags.STACK: cluster.stack_tag, tags.ROLE: tags.BUILDER})
    expired = [name for name, until in builders.items() if expired_at is None or until <= expired_at]
    if expired:
        ec2.terminate_instances(cluster.region, expired)
    return sorted(expired)


def _find_builders(region: str, required_tags: Tags) -> dict[str, float]:
    """Return instance -> Unix time at which it terminates itself."""
    return {
        instance["InstanceId"]: float(tags_of(instance).get(tags.UNTIL, 0.0))
        for instance in ec2.find_instances(region, required_tags)
    }
