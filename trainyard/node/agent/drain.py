"""How a node leaves its group: what wants it to go, how long it may stay, and the last word to Auto Scaling.

Auto Scaling holds a node that it ends by the group's termination lifecycle hook, until the node completes the action. A
spot interruption is EC2's own: nothing holds it, and the node has two minutes from its notice on.
"""

from typing import Literal

from botocore.exceptions import ClientError

from trainyard.aws.s3 import client
from trainyard.models.manifest import WorkerGroup
from trainyard.node.bootstrap import metadata
from trainyard.node.identity import Node

# How long a checkpoint may take before a node leaves.
LEAVE_SECONDS = 600.0
# Of a spot notice's two minutes: the rest is for torchrun's end and the last words to S3. Source:
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
INTERRUPTED_SECONDS = 95.0

Cause = Literal["terminating", "interrupted"]


class Departure:
    """One node's way out."""

    def __init__(self, node: Node, group: WorkerGroup) -> None:
        self._spot = group.spot
        self._said: set[str] = set()
        self._action = {
            "AutoScalingGroupName": group.autoscaling_group,
            "LifecycleHookName": group.lifecycle_hook,
            "InstanceId": node.instance,
        }
        self._autoscaling = client("autoscaling", node.region)

    def cause(self) -> Cause | None:
        """What wants this node to go; None while nothing does."""
        if _page("autoscaling/target-lifecycle-state") == "Terminated":
            return "terminating"
        return "interrupted" if self._spot and self._interrupted() else None

    def _interrupted(self) -> bool:
        """Whether EC2 has given notice. That the risk has grown is only said: the node may yet stay for hours."""
        if "events/recommendations/rebalance" not in self._said:
            self._said_by("events/recommendations/rebalance")
        return "spot/instance-action" in self._said or self._said_by("spot/instance-action")

    def _said_by(self, path: str) -> bool:
        """Whether EC2 says something there; said once to the log."""
        notice = _page(path)
        if notice is not None:
            self._said.add(path)
            print(f"departure: EC2's {path}: {notice}", flush=True)
        return notice is not None

    def seconds(self) -> float:
        """How long a last checkpoint may take."""
        return LEAVE_SECONDS if self.cause() == "terminating" else INTERRUPTED_SECONDS

    def stay_on(self) -> None:
        """The hook holds a node as long as it says that it still needs that."""
        if self.cause() == "terminating":
            self._autoscaling.record_lifecycle_action_heartbeat(**self._action)

    def complete(self) -> None:
        """The node has nothing more to do. Where no hook holds it, as after a spot notice, nobody waits for that."""
        try:
            self._autoscaling.complete_lifecycle_action(**self._action, LifecycleActionResult="CONTINUE")
        except ClientError as error:
            if error.response["Error"]["Code"] != "ValidationError":
                raise
            print(f"departure: {error}", flush=True)


def _page(path: str) -> str | None:
    """A page of the metadata service; None where there is none: no group's instance, not in service yet, no notice."""
    try:
        return metadata(f"meta-data/{path}").strip()
    except OSError:
        return None
