"""What can go wrong between the program and the account. Each names the resource."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from botocore.exceptions import ClientError

# What a thing that is not there is answered with. Of Auto Scaling, which has one code for all, also what it says.
_GONE = re.compile(
    r"\S+\.NotFound|(Resource)?NotFound(Exception)?\b|NoSuchEntity|NoSuchBucket|FileSystemNotFound"
    r"|DataRepositoryAssociationNotFound|NatGatewayNotFound|Gateway\.NotAttached"
    r"|InvalidPlacementGroup\.Unknown|ValidationError (No Lifecycle Hook found|AutoScalingGroup name not found)"
)


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


@contextmanager
def gone_already() -> Iterator[None]:
    """Around a call that deletes: a deletion that was cut is repeated, and what is gone then is as wanted."""
    try:
        yield
    except ClientError as error:
        told = error.response["Error"]
        if not _GONE.match(f"{told['Code']} {told.get('Message', '')}"):
            raise
