"""The message after objects were tagged for Deep Archive: what was tagged, when S3 moves it, how to prevent it."""

import math
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from trainyard.models.archive_state import CHECKPOINTS, RESULTS
from trainyard.quantity import quantity

DAY_SECONDS = 86400.0
MAX_NAMED_RUNS = 5


def describe_tagged(tagged: Mapping[str, Sequence[str]], objects: int, days: int, first_write: float) -> str:
    """Return the message. `tagged`: run -> prefixes below that of the run; `objects`: number of tagged objects.

    `days`: age at which S3 moves an object; `first_write`: Unix time of the earliest write of an object, seconds.
    """
    named = [f"{_describe_prefixes(prefixes)} of {run}" for run, prefixes in list(tagged.items())[:MAX_NAMED_RUNS]]
    if len(tagged) > MAX_NAMED_RUNS:
        named.append(f"objects of {quantity(len(tagged) - MAX_NAMED_RUNS, 'other run')}")
    return (
        f"tagged for S3 Glacier Deep Archive: {'; '.join(named)} ({quantity(objects, 'object')}). S3 moves an object "
        f"{quantity(days, 'day')} after its last write (storage.archive_after_days), the first of these "
        f"{_first_move(first_write + days * DAY_SECONDS)}. To keep them: increase storage.archive_after_days, or "
        "set it to none, and run pulumi up before that time. To keep one run only: launch a run with job.resume set to "
        "it"
    )


def _describe_prefixes(prefixes: Sequence[str]) -> str:
    names = [name for prefix, name in ((CHECKPOINTS, "checkpoints"), (RESULTS, "results")) if prefix in prefixes]
    older = len(prefixes) - len(names)
    return " and ".join([*([quantity(older, "older checkpoint")] if older else []), *names])


def _first_move(due_time: float) -> str:
    """Return when S3 moves an object that is due at this Unix time: at the next midnight UTC, or some time later."""
    midnight = math.ceil(due_time / DAY_SECONDS) * DAY_SECONDS
    return f"on {datetime.fromtimestamp(midnight, UTC):%Y-%m-%d}" if midnight > time.time() else "within two days"
