"""Object Lock of the results of a run that has succeeded."""

import logging
from concurrent.futures import ThreadPoolExecutor

from botocore.exceptions import ClientError

from trainyard.aws.outages import is_outage
from trainyard.models.run import Outcome
from trainyard.node.controller.run_state import RunState

LOG = logging.getLogger("controller")
DAY_SECONDS = 86400.0
PARALLEL_CALLS = 16


def lock_results(state: RunState, outcome: Outcome) -> Outcome:
    """Lock the results of a run that has succeeded, as its limits require. Return the outcome with the end of the lock.

    The lock precedes the outcome, so that a controller that is restarted in between repeats it. Raises ClientError if
    S3 does not respond: the next step repeats it. Any other error does not prevent the end of the run: its nodes are
    billed.
    """
    days = state.run.limits.lock_results_days
    if days is None or outcome.state != "succeeded":
        return outcome
    until = outcome.ended_at + days * DAY_SECONDS
    try:
        keys = list(state.data.keys(state.layout.results))
        with ThreadPoolExecutor(PARALLEL_CALLS) as pool:
            list(pool.map(lambda key: state.data.lock(key, until), keys))
    except ClientError as error:
        if is_outage(error):
            raise
        LOG.warning("the results cannot be locked: %s", error)
        return outcome.model_copy(update={"results_lock_error": str(error)})
    return outcome.model_copy(update={"results_locked_until": until if keys else None})
