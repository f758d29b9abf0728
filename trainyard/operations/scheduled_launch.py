"""The launch for a Capacity Block that starts later: AWS itself starts the nodes at that time.

The record of the run is written first, then the lease, then the scheduled action of each group: nothing starts without
a run that the controller knows and without a lease that ends it. The controller starts the job when all nodes are
ready. It ends the run, and scales to zero, when they are not in time.
"""

import time
from collections.abc import Callable

from trainyard.models.manifest import Manifest
from trainyard.models.run import RunRecord
from trainyard.operations.progress import Display
from trainyard.operations.run_record import create_run_record, format_time, with_deadlines
from trainyard.operations.worker_groups import WorkerGroups

# Auto Scaling refuses a scheduled action in the past.
MARGIN_SECONDS = 30.0


def far_start(manifest: Manifest) -> float | None:
    """Return the start of the manifest's capacity if a launch cannot wait for it; Unix time in seconds.

    A launch waits at most as long as a startup may take (launch.startup_timeout_minutes).
    """
    start = manifest.capacity_start_time
    limit = time.time() + manifest.limits.startup_timeout_minutes * 60
    return start if start is not None and start > limit else None


def is_waiting(run: RunRecord) -> bool:
    """Whether AWS has not started the nodes of a scheduled run yet."""
    return run.scheduled_start is not None and time.time() < run.scheduled_start


def schedule_record(manifest: Manifest, start: float, current: RunRecord | None) -> RunRecord:
    """Return the record of a run that starts at `start` (Unix time): a new run, or the waiting run `current`, moved."""
    if current is None:
        return create_run_record(manifest, time.time(), start)
    moved = current.model_copy(update={"scheduled_start": start, "nodes": manifest.nodes})
    return with_deadlines(moved, manifest)


def can_move(manifest: Manifest, run: RunRecord) -> bool:
    """Whether the scheduled start of a waiting run can be set to that of the manifest."""
    start = manifest.capacity_start_time
    return is_waiting(run) and start is not None and start > time.time() + MARGIN_SECONDS


def schedule(
    workers: WorkerGroups, record: RunRecord, write_record: Callable[[RunRecord], None], display: Display
) -> None:
    """Write the record, then put the lease and the scheduled start, which replaces an earlier one."""
    assert record.scheduled_start is not None
    workers.cancel_scheduled_start()  # the earlier one may be before the new start
    write_record(record)
    workers.put_lease(record.lease_end(time.time()))
    workers.put_scheduled_start(record.scheduled_start)
    when, minutes = format_time(record.scheduled_start), f"{record.limits.startup_timeout_minutes:g} minutes"
    text = f"{record.run} is scheduled for {when}: then AWS starts {record.nodes} nodes, and the controller the job"
    display.line("run", f"{text}. The controller ends the run if the job has not started after {minutes}")
