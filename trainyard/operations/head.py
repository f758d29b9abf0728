"""The head: the instance of its Auto Scaling group, which AWS replaces, and the startup of its controller."""

from trainyard.aws.autoscaling import describe_activities, describe_groups, launch_template_of
from trainyard.models.events import ServiceEvent
from trainyard.models.layout import HEAD_EVENTS
from trainyard.models.startup_failures import PlaybookFailures
from trainyard.models.streams import Cursor, node_events
from trainyard.operations.cluster import Cluster
from trainyard.operations.errors import DeadlineError, StartupError
from trainyard.operations.progress import Display
from trainyard.operations.startup import Deadline, display_event


def find_head(cluster: Cluster) -> str | None:
    """Return the instance id of the head; None while AWS replaces it.

    An instance of an earlier version of the group's launch template is not the head: an instance refresh ends it.
    """
    for group in describe_groups(cluster.region, [cluster.manifest.head_autoscaling_group]):
        template = launch_template_of(group)
        for instance in group["Instances"]:
            launched_from, state = instance.get("LaunchTemplate", {}), instance["LifecycleState"]
            is_current = all(launched_from.get(key) == template[key] for key in ("LaunchTemplateId", "Version"))
            if is_current and state in ("Pending", "InService"):
                return str(instance["InstanceId"])
    return None


def wait_for_head(cluster: Cluster, display: Display, deadline: Deadline) -> None:
    """Wait until the controller runs in the newest boot of the head, also if AWS replaces the head meanwhile.

    Raises StartupError when the head's playbook fails, DeadlineError after the time limit.
    """
    startup = _HeadStartup(cluster, display)
    display.detail("head", "waiting for the head's controller")
    try:
        deadline.wait_until("the head's controller", startup.is_ready)
    except DeadlineError as error:
        if find_head(cluster) is not None:
            raise
        raise DeadlineError(f"{error}: {_describe_missing_head(cluster)}") from None
    display.line("head", f"{startup.head} ready")


def _describe_missing_head(cluster: Cluster) -> str:
    """Return why there is no head, with the last activity of its group if that has failed."""
    region, group = cluster.region, cluster.manifest.head_autoscaling_group
    failures = [each for each in describe_activities(region, group)[:1] if each["StatusCode"] == "Failed"]
    reason = "".join(f": {failure.get('StatusMessage', failure['Description'])}" for failure in failures)
    return (
        f"the Auto Scaling group {group} has no instance of its launch template{reason}. If it has one of an earlier "
        "version, terminate it: AWS then launches the head"
    )


class _HeadStartup:
    def __init__(self, cluster: Cluster, display: Display) -> None:
        self.head: str | None = None
        self._cluster, self._display = cluster, display

    def _follow(self, head: str) -> None:
        assert self._cluster.staging is not None
        self.head = head
        self._cursor = Cursor(self._cluster.staging, f"{HEAD_EVENTS}{head}/")
        self._controller_boots: set[str] = set()
        self._failures = PlaybookFailures()

    def is_ready(self) -> bool:
        """Display new events; return whether the controller runs. Raises StartupError for a failed playbook."""
        head = find_head(self._cluster)
        if head is None:
            return False
        if head != self.head:
            self._follow(head)
        for event in node_events(self._cursor):
            display_event(self._display, event)
            if isinstance(event, ServiceEvent):
                self._controller_boots.add(event.boot)
            self._failures.handle(event)
        newest_boot = max([*self._controller_boots, *self._failures.boots], default="")
        if self._failures.is_final(head, newest_boot):
            message = self._failures.messages[head, newest_boot]
            raise StartupError(f"the head {head} could not be configured: {message}")
        return newest_boot in self._controller_boots
