"""What can go wrong between the program and the account. Each names the resource."""


class AdapterError(Exception):
    """The adapter could not do what the program asked."""


class UnknownType(AdapterError):
    """A resource type, or a look-up, that the adapter has no handler for."""


class UnknownKey(AdapterError):
    """An input that the handler of its type would have to ignore."""


class Refused(AdapterError):
    """What the API said no to, with its code and message."""


class WaitExpired(AdapterError):
    """A thing did not reach its state before the deadline."""


class CommandFailed(AdapterError):
    """A command of the program ended with a non-zero status."""
