"""Errors of a launch or a bake."""


class LaunchError(RuntimeError):
    """The launch failed with this reason. No node that it added still runs, unless the message names one."""


class StartupError(LaunchError):
    """A node or the job failed to start."""


class DeadlineError(StartupError):
    """A node or the job did not start within the time limit."""


class CapacityError(LaunchError):
    """AWS does not have the requested capacity, or the reservation is not usable; the message has the reason of AWS."""
