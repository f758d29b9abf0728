"""What went wrong with a storage, and whether to try again: the same decision on every rank."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from trainyard.base import InputError, Problem

# Seconds between the tries of one save or load: an outage of two minutes is ridden out. The same on every rank, so that
# all ranks try again together.
PAUSES = (1, 2, 4, 8, 15, 30, 30, 30)

T = TypeVar("T")


class Damaged(Exception):
    """A checkpoint that bears the commit mark and can't be what was saved."""


class Kind(Enum):
    """Why something failed, as far as the next thing to do depends on it."""

    PASSING = "the storage was not reached: it may soon be"
    ARCHIVED = "S3 has moved an object to where nothing is read"
    DAMAGED = "what was read is not what was written"
    MISTAKE = "the user's, to be told as it is"
    OTHER = "will be the same the next time"


@dataclass(frozen=True)
class Failure:
    """Of one rank, in a form that travels: exceptions often can't be pickled."""

    kind: Kind
    words: str
    problems: tuple[Problem, ...] = ()  # of a mistake

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        words = str(error) if isinstance(error, Damaged) else f"{type(error).__name__}: {error}"
        return cls(_kind(error), words, tuple(error.problems) if isinstance(error, InputError) else ())


def insist(attempt: Callable[[], T], doing: str, uri: str, pauses: Iterable[int] | None = None) -> T:
    """Do it, and again after each pause while the storage is what fails.

    On several ranks `attempt` fails on all of them alike, with a CheckpointException or Failures that names each rank's
    failure, or on none. Raises Damaged, InputError for what S3 holds and can't be read or what the user can mend, and
    OSError in the first failure's words for all else.
    """
    for pause in (*(PAUSES if pauses is None else pauses), None):
        try:
            return attempt()
        except Failures as failed:
            failures, cause = failed.failures, failed.__cause__
        except CheckpointException as failed:
            failures = [Failure.of(error) for error, _ in failed.failures.values()]
            cause = next(error for error, _ in failed.failures.values())
        except Exception as error:
            failures, cause = [Failure.of(error)], error
        decisive = _decisive(failures)
        if decisive.kind is Kind.MISTAKE:
            raise InputError(decisive.problems) from None
        if decisive.kind is Kind.ARCHIVED:
            raise _archived(uri) from cause
        if decisive.kind is Kind.DAMAGED:
            raise Damaged(decisive.words) from cause
        words = f"{doing} {uri}: {decisive.words}"
        if pause is None or decisive.kind is Kind.OTHER:
            raise OSError(words) from cause
        if not dist.is_initialized() or dist.get_rank() == 0:
            print(f"{words}; again in {pause} s", flush=True)
        time.sleep(pause)
    raise AssertionError("unreachable")


class Failures(Exception):
    """Of all ranks of a group, the same on each."""

    def __init__(self, failures: list[Failure]) -> None:
        super().__init__("; ".join(failure.words for failure in failures))
        self.failures = failures


def together(attempt: Callable[[], T], group: dist.ProcessGroup) -> T:
    """Do it on every rank. Where one fails, all raise the same Failures."""
    mine: Failure | None = None
    cause: Exception | None = None
    try:
        result = attempt()
    except Exception as error:
        mine, cause = Failure.of(error), error
    found: list[Failure | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, mine, group=group)
    failures = [failure for failure in found if failure]
    if failures:
        raise Failures(failures) from cause
    return result


def _decisive(failures: list[Failure]) -> Failure:
    """The one that says what to do: what waiting does not mend comes before what it does."""
    order = (Kind.MISTAKE, Kind.ARCHIVED, Kind.OTHER, Kind.DAMAGED, Kind.PASSING)
    return min(failures, key=lambda failure: order.index(failure.kind))


def _kind(error: BaseException) -> Kind:
    if isinstance(error, InputError):
        return Kind.MISTAKE
    if isinstance(error, Damaged):
        return Kind.DAMAGED
    words = str(error).lower()
    if type(error).__name__ == "S3Exception":  # the connector's only class; importing it costs those who use a folder
        # InvalidObjectState, which the connector tells by S3's own words only
        if "not valid for the object's storage class" in words:
            return Kind.ARCHIVED
        refused = any(word in words for word in ("not found", "denied", "forbidden", "does not exist"))
        return Kind.OTHER if refused else Kind.PASSING
    code = getattr(error, "code", None)  # of trainer.storage.S3Refused
    if code == "InvalidObjectState":
        return Kind.ARCHIVED
    if isinstance(code, str):
        return Kind.PASSING if code in _PASSING_CODES else Kind.OTHER
    passing = isinstance(error, OSError) and not isinstance(error, FileNotFoundError | PermissionError)
    return Kind.PASSING if passing else Kind.OTHER


_PASSING_CODES = ("InternalError", "RequestTimeout", "ServiceUnavailable", "SlowDown", "500", "502", "503", "504")


def _archived(uri: str) -> InputError:
    why = "S3 has moved it to an archive class such as Deep Archive, from where nothing is read"
    fix = "Ask for it back (aws s3api restore-object; 12 to 48 hours) and start again, or resume from another run"
    return InputError([Problem(key="checkpoint", value=uri, why=why, fix=fix)])
