"""Drain of a node that leaves its group: cause, time limit and power-off.

Auto Scaling holds a node that it terminates with the group's termination lifecycle hook. A drained node powers itself
off, which terminates it and ends its cost; the controller completes the lifecycle action. The node may not: IAM cannot
limit CompleteLifecycleAction to the caller's own instance. A heartbeat extends the hook at most to its global timeout.
A spot interruption is an action of EC2: no hook holds the node, which has two minutes from the notice. The
reclaim of an interruptible Capacity Reservation is also an action of EC2, but EC2 documents no notice of it in the
instance metadata: the controller requests the checkpoint. If the metadata has a notice, the node drains as on Spot.
"""

import logging
import subprocess
from typing import Literal

from trainyard.aws.clients import client
from trainyard.models.manifest import WorkerGroup
from trainyard.node.bootstrap import metadata
from trainyard.node.identity import Node

# Maximum duration of a checkpoint before a node is terminated.
DRAIN_SECONDS = 600.0
# Part of the two minutes of a spot notice; the rest is for the stop of torchrun and the last writes to S3. Source:
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
INTERRUPTION_SECONDS = 95.0
POWER_OFF_SECONDS = 30.0  # until systemd accepts the command
LOG = logging.getLogger("agent.drain")

Cause = Literal["terminating", "interrupted"]


class Drain:
    """Drain of one node."""

    def __init__(self, node: Node, group: WorkerGroup) -> None:
        self._interruptible = group.interruptible
        self._noticed: set[str] = set()
        self._action = {
            "AutoScalingGroupName": group.autoscaling_group,
            "LifecycleHookName": group.lifecycle_hook,
            "InstanceId": node.instance,
        }
        self._autoscaling = client("autoscaling", node.region)

    def cause(self) -> Cause | None:
        """Why this node must be drained; None if it is not drained."""
        if _metadata_page("autoscaling/target-lifecycle-state") == "Terminated":
            return "terminating"
        return "interrupted" if self._interruptible and self._is_interrupted() else None

    def _is_interrupted(self) -> bool:
        """Whether EC2 has sent an interruption notice. A rebalance recommendation is only logged, because the node may
        still run for hours."""
        if "events/recommendations/rebalance" not in self._noticed:
            self._check_notice("events/recommendations/rebalance")
        return "spot/instance-action" in self._noticed or self._check_notice("spot/instance-action")

    def _check_notice(self, path: str) -> bool:
        """Whether the metadata service has a notice at `path`; logs it once."""
        notice = _metadata_page(path)
        if notice is not None:
            self._noticed.add(path)
            LOG.warning("EC2 notice %s: %s", path, notice)
        return notice is not None

    def checkpoint_timeout_seconds(self) -> float:
        """Maximum duration of the last checkpoint."""
        return DRAIN_SECONDS if self.cause() == "terminating" else INTERRUPTION_SECONDS

    def record_heartbeat(self) -> None:
        """Extend the time for which the lifecycle hook holds this node."""
        if self.cause() == "terminating":
            self._autoscaling.record_lifecycle_action_heartbeat(**self._action)

    def power_off(self, cause: Cause) -> None:
        """Power the node off if its Auto Scaling group terminates it. EC2 terminates an interrupted node itself.

        The launch template sets InstanceInitiatedShutdownBehavior to terminate.
        """
        if cause == "terminating":
            LOG.info("the node is drained and powers off")
            subprocess.run(["systemctl", "poweroff"], check=True, timeout=POWER_OFF_SECONDS)


def _metadata_page(path: str) -> str | None:
    """A page of the metadata service; None if it does not exist: no group, not yet in service, or no notice."""
    try:
        return metadata(f"meta-data/{path}").strip()
    except OSError:
        return None
