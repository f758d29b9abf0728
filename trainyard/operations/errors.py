"""How a launch fails."""


class LaunchError(RuntimeError):
    """The launch ended, and nothing that it added runs unless the message says so; the message says why."""


class BringUpError(LaunchError):
    """What was waited for will not come."""


class DeadlineError(BringUpError):
    """What was waited for did not come in time."""


class CapacityError(LaunchError):
    """Fewer nodes than asked for could be launched; the message has AWS's error codes."""
