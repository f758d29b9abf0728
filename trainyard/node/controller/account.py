"""The AWS account of a run, as its controller uses it: its storage, worker groups and instances.

Capacity reservations and Capacity Blocks are not part of it: they are used by region, and only by runs that have them.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from trainyard.aws import autoscaling
from trainyard.aws.instance_status import find_impaired_instances, running_instances
from trainyard.aws.lease import put_lease
from trainyard.aws.s3 import Bucket
from trainyard.aws.scheduled_start import cancel_scheduled_start
from trainyard.aws.topology import describe_network_nodes


class Account:
    """The account in one region. A simulation replaces it."""

    def __init__(self, region: str) -> None:
        self.region = region

    def bucket(self, name: str) -> Bucket:
        """Return a bucket."""
        return Bucket(name, self.region)

    def describe_groups(self, groups: Collection[str]) -> list[dict[str, Any]]:
        """Return the descriptions of the named groups; groups that do not exist are omitted."""
        return autoscaling.describe_groups(self.region, groups)

    def describe_activities(self, group: str) -> list[dict[str, Any]]:
        """Return the latest scaling activities of a group, newest first."""
        return autoscaling.describe_activities(self.region, group)

    def set_desired_capacity(self, group: str, instances: int) -> None:
        """Set the desired capacity of a group."""
        autoscaling.set_desired_capacity(self.region, group, instances)

    def set_unhealthy(self, instance: str) -> None:
        """Mark a member of a group unhealthy: the group replaces it."""
        autoscaling.set_unhealthy(self.region, instance)

    def terminate_instance(self, instance: str, *, is_replaced: bool = False) -> None:
        """Terminate a member of a group, without a replacement unless `is_replaced`."""
        autoscaling.terminate_instance(self.region, instance, is_replaced=is_replaced)

    def complete_lifecycle_action(self, group: str, hook: str, instance: str) -> None:
        """Let the termination of a member that waits at a lifecycle hook continue."""
        autoscaling.complete_lifecycle_action(self.region, group, hook, instance)

    def put_lease(self, groups: Sequence[str], until: float) -> None:
        """Create or move the lease of the groups: they are scaled to 0 at `until`, Unix time in seconds."""
        put_lease(self.region, groups, until)

    def cancel_scheduled_start(self, groups: Sequence[str]) -> None:
        """Delete the scheduled launch of nodes, if any."""
        cancel_scheduled_start(self.region, groups)

    def find_impaired_instances(self, instances: Collection[str]) -> dict[str, str]:
        """Return instance -> reason, for those that do not run any more, or whose status checks fail."""
        return find_impaired_instances(self.region, instances)

    def running_instances(self, instances: Collection[str]) -> set[str]:
        """Return those of the instances that are pending or running."""
        return running_instances(self.region, instances)

    def describe_network_nodes(self, instances: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
        """Return the network nodes of each instance, from the top of the network to the bottom."""
        return describe_network_nodes(self.region, instances)
