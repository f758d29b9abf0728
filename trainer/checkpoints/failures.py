"""Failures of checkpoint storage: their kinds, retries, and agreement on them across all ranks."""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from trainyard.errors import InputError, Problem

# Seconds between the attempts of one save or load, two minutes in total: a run survives an outage of that length.
# The values are the same on every rank, so that all ranks retry at the same time.
RETRY_PAUSES_SECONDS = (1, 2, 4, 8, 15, 30, 30, 30)

T = TypeVar("T")
log = logging.getLogger(__name__)


class DamagedCheckpointError(Exception):
    """A checkpoint has its commit mark, but its content differs from the saved content."""


class RefusedError(OSError):
    """The storage would fail in the same way again, for example because it denies access."""


class FailureKind(Enum):
    """Why an operation failed, as far as the next action depends on it."""

    TRANSIENT = "the storage did not respond; a retry may succeed"
    ARCHIVED = "S3 has moved an object to an archive storage class"
    DAMAGED = "the content that was read is not the content that was written"
    USER_ERROR = "the user must change the input"
    PERMANENT = "a retry would fail in the same way"


@dataclass(frozen=True)
class Failure:
    """The failure of one rank. It can be pickled; many exceptions can't."""

    kind: FailureKind
    message: str
    problems: tuple[Problem, ...] = ()  # of a USER_ERROR

    @classmethod
    def from_exception(cls, error: BaseException) -> "Failure":
        """Create it from an exception of one rank."""
        message = str(error) if isinstance(error, DamagedCheckpointError) else f"{type(error).__name__}: {error}"
        return cls(_kind_of(error), message, tuple(error.problems) if isinstance(error, InputError) else ())


def retry(attempt: Callable[[], T], operation: str, uri: str, pauses_seconds: Iterable[int] | None = None) -> T:
    """Call `attempt`, and call it again after each pause while the storage fails temporarily.

    On several ranks `attempt` fails on all ranks, with a CheckpointException or CollectiveError that has each rank's
    failure, or on none. `operation` and `uri` go into messages. Raises DamagedCheckpointError for damaged content,
    InputError for archived objects and user errors, RefusedError for what fails in the same way again, and OSError for
    everything else.
    """
    for pause in (*(RETRY_PAUSES_SECONDS if pauses_seconds is None else pauses_seconds), None):
        try:
            return attempt()
        except CollectiveError as error:
            failures, cause = error.failures, error.__cause__
        except CheckpointException as error:
            failures = [Failure.from_exception(failure) for failure, _ in error.failures.values()]
            cause = next(failure for failure, _ in error.failures.values())
        except Exception as error:
            failures, cause = [Failure.from_exception(error)], error
        decisive = _decisive(failures)
        if decisive.kind is FailureKind.USER_ERROR:
            raise InputError(decisive.problems) from None
        if decisive.kind is FailureKind.ARCHIVED:
            raise _archived(uri) from cause
        if decisive.kind is FailureKind.DAMAGED:
            raise DamagedCheckpointError(decisive.message) from cause
        message = f"{operation} {uri}: {decisive.message}"
        if decisive.kind is FailureKind.PERMANENT:
            raise RefusedError(message) from cause
        if pause is None:
            raise OSError(message) from cause
        if not dist.is_initialized() or dist.get_rank() == 0:
            log.warning("%s; retrying in %d s", message, pause)
        time.sleep(pause)
    raise AssertionError("unreachable")


class CollectiveError(Exception):
    """Some ranks of a group have failed. Every rank raises it with the same failures."""

    def __init__(self, failures: list[Failure]) -> None:
        super().__init__("; ".join(failure.message for failure in failures))
        self.failures = failures


def on_all_ranks(attempt: Callable[[], T], group: dist.ProcessGroup) -> T:
    """Call `attempt` on every rank of the group. If it fails on any rank, all ranks raise the same CollectiveError."""
    failure: Failure | None = None
    cause: Exception | None = None
    try:
        result = attempt()
    except Exception as error:
        failure, cause = Failure.from_exception(error), error
    by_rank: list[Failure | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(by_rank, failure, group=group)
    failures = [failure for failure in by_rank if failure]
    if failures:
        raise CollectiveError(failures) from cause
    return result


def _decisive(failures: list[Failure]) -> Failure:
    """Return the failure that decides the next action. Failures that a retry can't repair have precedence."""
    order = (
        FailureKind.USER_ERROR,
        FailureKind.ARCHIVED,
        FailureKind.PERMANENT,
        FailureKind.DAMAGED,
        FailureKind.TRANSIENT,
    )
    return min(failures, key=lambda failure: order.index(failure.kind))


def _kind_of(error: BaseException) -> FailureKind:
    if isinstance(error, InputError):
        return FailureKind.USER_ERROR
    if isinstance(error, DamagedCheckpointError):
        return FailureKind.DAMAGED
    message = str(error).lower()
    if type(error).__name__ == "S3Exception":  # the connector's only class; a run without S3 does not import it
        # The connector reports InvalidObjectState only by the text of S3's message.
        if "not valid for the object's storage class" in message:
            return FailureKind.ARCHIVED
        refused = any(phrase in message for phrase in ("not found", "denied", "forbidden", "does not exist"))
        return FailureKind.PERMANENT if refused else FailureKind.TRANSIENT
    code = getattr(error, "code", None)  # of trainer.storage.S3Error
    if code == "InvalidObjectState":
        return FailureKind.ARCHIVED
    if isinstance(code, str):
        return FailureKind.TRANSIENT if code in _TRANSIENT_CODES else FailureKind.PERMANENT
    transient = isinstance(error, OSError) and not isinstance(error, FileNotFoundError | PermissionError)
    return FailureKind.TRANSIENT if transient else FailureKind.PERMANENT


_TRANSIENT_CODES = ("InternalError", "RequestTimeout", "ServiceUnavailable", "SlowDown", "500", "502", "503", "504")


def _archived(uri: str) -> InputError:
    reason = "S3 has moved it to an archive class such as Deep Archive, from where nothing is read"
    fix = "Restore it (aws s3api restore-object; 12 to 48 hours) and start again, or resume from another run"
    return InputError([Problem("checkpoint", uri, reason, fix, "checkpoint_archived")])
