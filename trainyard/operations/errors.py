"""Errors of a launch or a bake."""


class LaunchError(RuntimeError):
    """The launch failed with this reason. No node that it added still runs, unless the message names one."""


class StartupError(LaunchError):
    """A node or the job failed to start."""


class DeadlineError(StartupError):
    """A node or the job did not start within the time limit."""


class CapacityError(LaunchError):
    """AWS launched fewer nodes than requested; the message contains the AWS error codes."""
