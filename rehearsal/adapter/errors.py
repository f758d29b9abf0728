"""Errors of the adapter. Each message names the resource."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from botocore.exceptions import ClientError

# Error codes of resources that do not exist. Auto Scaling uses one code for everything: there the message matters too.
_MISSING_CODES = re.compile(
    r"\S+\.NotFound|(Resource)?NotFound(Exception)?\b|NoSuch\w+|FileSystemNotFound"
    r"|ServerSideEncryptionConfigurationNotFoundError|ObjectLockConfigurationNotFoundError"
    r"|DataRepositoryAssociationNotFound|NatGatewayNotFound|Gateway\.NotAttached"
    r"|InvalidPlacementGroup\.Unknown|ValidationError (No Lifecycle Hook found|AutoScalingGroup name not found)"
)


class AdapterError(Exception):
    """The adapter could not execute an operation of the program."""


class UnsupportedTypeError(AdapterError):
    """The adapter has no handler for a resource type, or does not implement a provider function."""


class UnsupportedInputError(AdapterError):
    """The handler of a resource type does not implement one of the inputs."""


class RequestFailedError(AdapterError):
    """An API request failed. The message has the API's error code and message."""


class WaitTimeoutError(AdapterError):
    """A resource did not reach the expected state before the timeout."""


class CommandFailedError(AdapterError):
    """A local command of the program ended with a non-zero exit status."""


@contextmanager
def ignore_missing() -> Iterator[None]:
    """Ignore the API's not-found errors: a deletion repeats after an interrupt, and may find nothing to delete."""
    try:
        yield
    except ClientError as error:
        details = error.response["Error"]
        if not _MISSING_CODES.match(f"{details['Code']} {details.get('Message', '')}"):
            raise
