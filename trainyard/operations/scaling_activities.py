"""Calls that Auto Scaling refuses during scaling activities: terminations and SetDesiredCapacity. They are retried."""

import time
from collections.abc import Callable, Mapping

from botocore.exceptions import BotoCoreError, ClientError

from trainyard.aws import autoscaling, ec2
from trainyard.models.manifest import WorkerGroup
from trainyard.operations.progress import Display

# The error of TerminateInstanceInAutoScalingGroup while an instance of the group is pending. The Auto Scaling API
# reference lists it for SetDesiredCapacity too, without its condition.
LAUNCH_IN_PROGRESS = "ScalingActivityInProgress"
# GPU instances are pending for minutes.
LAUNCH_TIMEOUT_SECONDS = 15 * 60.0
MAX_TRIES, RETRY_DELAY_SECONDS = 3, 2.0


def launch_deadline() -> float:
    """Return the time.monotonic() until which instances that are pending now have started."""
    return time.monotonic() + LAUNCH_TIMEOUT_SECONDS


def set_desired_capacity(
    region: str, group: str, capacity: Callable[[], int], display: Display, deadline: float
) -> None:
    """Set the desired capacity of a group to the value of `capacity`, which may read the group.

    Retries during scaling activities until `deadline` (time.monotonic()), and after other errors MAX_TRIES times.
    Raises botocore's last error.
    """
    failures = 0
    while True:
        try:
            autoscaling.set_desired_capacity(region, group, capacity())
            return
        except (BotoCoreError, ClientError) as error:
            failures += _error_code(error) != LAUNCH_IN_PROGRESS
            if failures == MAX_TRIES or time.monotonic() > deadline:
                raise
            display.line(group, f"the desired capacity cannot be set, retrying: {error}")
            time.sleep(RETRY_DELAY_SECONDS)


class NodeTermination:
    """The termination of one member of a worker group, without replacement.

    `read_states`: returns member -> lifecycle state of all groups.
    """

    def __init__(
        self,
        region: str,
        group: WorkerGroup,
        name: str,
        read_states: Callable[[], Mapping[str, str]],
        display: Display,
    ) -> None:
        self._region, self._group, self._name = region, group, name
        self._read_states, self._display = read_states, display

    def terminate(self, deadline: float) -> bool:
        """Request the termination; return whether AWS accepted it.

        `deadline`: time.monotonic() until which to retry while instances of the group are pending.
        """
        if not self._terminate_in_group(deadline):
            return self._terminate_in_ec2()
        group, hook = self._group.autoscaling_group, self._group.lifecycle_hook
        try:  # the node has nothing to save: the lifecycle hook does not need to delay its termination
            autoscaling.complete_lifecycle_action(self._region, group, hook, self._name)
        except (BotoCoreError, ClientError) as error:
            self._display.detail(self._name, str(error))  # the termination continues after the hook's timeout
        return True

    def _terminate_in_group(self, deadline: float) -> bool:
        failures = 0
        while failures < MAX_TRIES:
            try:
                autoscaling.terminate_instance(self._region, self._name)
                return True
            except (BotoCoreError, ClientError) as error:
                if self._is_terminating():
                    return True  # another process has terminated it
                if _error_code(error) == LAUNCH_IN_PROGRESS and time.monotonic() < deadline:
                    text = "cannot be terminated while instances of its group are pending: retrying"
                    self._display.line(self._name, text)
                    time.sleep(RETRY_DELAY_SECONDS)
                    continue
                if _error_code(error) == "ValidationError":  # the controller has set the desired capacity to 0
                    self._display.detail(self._name, str(error))
                    return False
                failures += 1
                report = self._display.line if failures == MAX_TRIES else self._display.detail
                report(self._name, f"could not be terminated: {error}")
                time.sleep(failures * RETRY_DELAY_SECONDS)
        return False

    def _is_terminating(self) -> bool:
        """Return whether the member is terminating or has left; False when AWS does not answer."""
        try:
            return self._read_states().get(self._name, "Terminated").startswith("Terminat")
        except (BotoCoreError, ClientError):
            return False

    def _terminate_in_ec2(self) -> bool:
        """Terminate a member that Auto Scaling does not terminate, then lower the desired capacity."""
        try:
            ec2.terminate_instances(self._region, [self._name])
        except (BotoCoreError, ClientError) as error:
            self._display.line(self._name, f"could not be terminated: {error}")
            return False
        self._decrement_desired_capacity()
        return True

    def _decrement_desired_capacity(self) -> None:
        """Lower the desired capacity by one, so that Auto Scaling does not replace the terminated instance."""
        group = self._group.autoscaling_group

        def one_less() -> int:
            (description,) = autoscaling.describe_groups(self._region, [group])
            return max(0, int(description["DesiredCapacity"]) - 1)

        try:
            set_desired_capacity(self._region, group, one_less, self._display, launch_deadline())
        except (BotoCoreError, ClientError) as error:
            text = f"Auto Scaling may replace terminated nodes until the lease ends: {error}"
            self._display.line(group, f"the desired capacity was not lowered. {text}")


def _error_code(error: Exception) -> str:
    return str(error.response["Error"]["Code"]) if isinstance(error, ClientError) else ""
