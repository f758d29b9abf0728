"""Retry SetDesiredCapacity and instance terminations while Auto Scaling returns ScalingActivityInProgress."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set

from botocore.exceptions import BotoCoreError, ClientError

from trainyard.aws import autoscaling, ec2
from trainyard.models.manifest import WorkerGroup
from trainyard.operations.progress import Display

# The error of TerminateInstanceInAutoScalingGroup while an instance of the group is pending. The Auto Scaling API
# reference lists it for SetDesiredCapacity too, without its condition.
LAUNCH_IN_PROGRESS = "ScalingActivityInProgress"
# GPU instances are pending for minutes.
LAUNCH_TIMEOUT_SECONDS = 15 * 60.0
MAX_ATTEMPTS, RETRY_DELAY_SECONDS = 3, 2.0


def launch_deadline() -> float:
    """Return the time.monotonic() until which instances that are pending now have started."""
    return time.monotonic() + LAUNCH_TIMEOUT_SECONDS


def set_desired_capacity(region: str, group: str, capacity: int, display: Display, deadline: float) -> None:
    """Set the desired capacity of a group.

    Retries during scaling activities until `deadline` (time.monotonic()), and after other errors MAX_ATTEMPTS times.
    Raises botocore's last error.
    """
    failures = 0
    while True:
        try:
            autoscaling.set_desired_capacity(region, group, capacity)
            return
        except (BotoCoreError, ClientError) as error:
            failures += _error_code(error) != LAUNCH_IN_PROGRESS
            if failures == MAX_ATTEMPTS or time.monotonic() > deadline:
                raise
            display.line(group, f"the desired capacity cannot be set, retrying: {error}")
            time.sleep(RETRY_DELAY_SECONDS)


class NodeTerminations:
    """Terminates members of worker groups, without replacement.

    `group_of`: member -> its group. `read_states`: returns member -> lifecycle state of all groups.
    """

    def __init__(
        self,
        region: str,
        group_of: Mapping[str, WorkerGroup],
        read_states: Callable[[], Mapping[str, str]],
        display: Display,
    ) -> None:
        self._region, self._group_of = region, group_of
        self._read_states, self._display = read_states, display

    def terminate(self, instance_ids: Iterable[str], deadline: float) -> list[str]:
        """Request the terminations; return the nodes whose termination AWS did not accept.

        EC2 terminates what Auto Scaling refuses to terminate until `deadline` (time.monotonic()).
        """
        refused = self._terminate_in_groups(list(instance_ids), deadline)
        ended = [each for each in refused if self._terminate_in_ec2(each)]
        for group, count in Counter(self._group_of[each].autoscaling_group for each in ended).items():
            self._lower_desired_capacity(group, count)
        return [each for each in refused if each not in ended]

    def _terminate_in_groups(self, instance_ids: list[str], deadline: float) -> list[str]:
        """Return the nodes that Auto Scaling does not terminate."""
        refused: list[str] = []
        failures: Counter[str] = Counter()
        while instance_ids:
            errors = {each: error for each in instance_ids if (error := self._request_termination(each))}
            ended = self._find_ended(errors.keys())
            instance_ids = []
            for each in errors.keys() - ended:
                code = _error_code(errors[each])
                if code == LAUNCH_IN_PROGRESS and time.monotonic() < deadline:
                    instance_ids.append(each)
                    continue
                failures[each] += 1
                # ValidationError: the controller has set the desired capacity to 0.
                is_refused = code == "ValidationError" or failures[each] == MAX_ATTEMPTS
                (refused if is_refused else instance_ids).append(each)
            if instance_ids:
                instance_ids.sort()
                text = f"could not be terminated, retrying: {_describe_errors(instance_ids, errors)}"
                self._display.line("nodes", text)
                time.sleep(RETRY_DELAY_SECONDS)
        return refused

    def _request_termination(self, instance_id: str) -> Exception | None:
        """Request the termination in the node's group; return the error of AWS."""
        try:
            autoscaling.terminate_instance(self._region, instance_id)
        except (BotoCoreError, ClientError) as error:
            failure: Exception = error
            return failure
        group = self._group_of[instance_id]
        try:  # the node has nothing to save: the lifecycle hook does not need to delay its termination
            autoscaling.complete_lifecycle_action(
                self._region, group.autoscaling_group, group.lifecycle_hook, instance_id
            )
        except (BotoCoreError, ClientError) as error:
            self._display.detail(instance_id, str(error))  # the termination continues after the hook's timeout
        return None

    def _find_ended(self, instance_ids: Set[str]) -> set[str]:
        """Return the nodes that AWS describes as terminating or terminated, for example by another process.

        A node that a response of Auto Scaling omits may run: then the response of EC2 decides.
        """
        if not instance_ids:
            return set()
        try:
            states = self._read_states()
            in_ec2 = ec2.instance_states(self._region, instance_ids - states.keys())
        except (BotoCoreError, ClientError) as error:
            self._display.detail("nodes", f"their states could not be read: {error}")
            return set()
        return {
            each
            for each in instance_ids
            if states.get(each, "").startswith("Terminat") or in_ec2.get(each) in ("shutting-down", "terminated")
        }

    def _terminate_in_ec2(self, instance_id: str) -> bool:
        try:
            ec2.terminate_instances(self._region, [instance_id])
        except (BotoCoreError, ClientError) as error:
            self._display.line(instance_id, f"could not be terminated: {error}")
            return False
        return True

    def _lower_desired_capacity(self, group: str, ended: int) -> None:
        """Lower the desired capacity, so that Auto Scaling does not replace instances that EC2 has terminated."""
        try:
            (description,) = autoscaling.describe_groups(self._region, [group])
            capacity = max(0, int(description["DesiredCapacity"]) - ended)  # fixed: a response may be lost
            set_desired_capacity(self._region, group, capacity, self._display, launch_deadline())
        except (BotoCoreError, ClientError) as error:
            text = f"Auto Scaling may replace terminated nodes until the lease ends: {error}"
            self._display.line(group, f"the desired capacity was not lowered. {text}")


def _describe_errors(instance_ids: Iterable[str], errors: Mapping[str, Exception]) -> str:
    """Return each error with its nodes."""
    by_text: dict[str, list[str]] = {}
    for instance_id in instance_ids:
        is_launching = _error_code(errors[instance_id]) == LAUNCH_IN_PROGRESS
        text = "instances of its group are pending" if is_launching else str(errors[instance_id])
        by_text.setdefault(text, []).append(instance_id)
    return "; ".join(f"{', '.join(nodes)} ({text})" for text, nodes in by_text.items())


def _error_code(error: Exception) -> str:
    return str(error.response["Error"]["Code"]) if isinstance(error, ClientError) else ""
