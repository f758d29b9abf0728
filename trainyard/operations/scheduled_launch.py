"""Launch for a Capacity Block that starts later: a scheduled action of each worker group starts the nodes.

The launch writes the record of the run first, then the lease, then the scheduled actions, so that no node starts
without a run and a lease. The controller starts the job when all nodes are ready. If the job has not started within
launch.startup_timeout_minutes, the controller ends the run and scales the groups to zero.
"""

import time
from collections.abc import Callable

from trainyard.models.manifest import Manifest
from trainyard.models.run import RunRecord
from trainyard.operations.progress import Display
from trainyard.operations.run_record import create_run_record, with_deadlines
from trainyard.operations.worker_groups import WorkerGroups
from trainyard.quantity import quantity
from trainyard.times import format_time

# Auto Scaling refuses a scheduled action in the past.
MARGIN_SECONDS = 30.0


def requires_scheduled_start(manifest: Manifest) -> bool:
    """Whether the manifest's Capacity Block starts later than a launch waits (launch.startup_timeout_minutes)."""
    start = manifest.capacity_start_time
    return start is not None and start > time.time() + manifest.limits.startup_timeout_minutes * 60


def is_scheduled(run: RunRecord) -> bool:
    """Whether the scheduled start of the run is in the future."""
    return run.scheduled_start is not None and time.time() < run.scheduled_start


def create_scheduled_record(manifest: Manifest, start: float, current: RunRecord | None) -> RunRecord:
    """Return the record of a run that starts at `start` (Unix time): a new run, or the scheduled run `current`."""
    if current is None:
        return create_run_record(manifest, time.time(), start)
    changed = current.model_copy(update={"scheduled_start": start, "nodes": manifest.job_nodes})
    return with_deadlines(changed, manifest)


def can_reschedule(manifest: Manifest, run: RunRecord) -> bool:
    """Whether the run is scheduled and its start can be changed to that of the manifest."""
    start = manifest.capacity_start_time
    return is_scheduled(run) and start is not None and start > time.time() + MARGIN_SECONDS


def schedule(
    workers: WorkerGroups, record: RunRecord, write_record: Callable[[RunRecord], None], display: Display
) -> None:
    """Write the record, then create the lease and the scheduled start. They replace those of an earlier schedule."""
    assert record.scheduled_start is not None
    workers.cancel_scheduled_start()  # an earlier start may be before the new start
    write_record(record)
    workers.put_lease(record.lease_end(time.time()))
    workers.put_scheduled_start(record.scheduled_start)
    when, minutes = format_time(record.scheduled_start), quantity(record.limits.startup_timeout_minutes, "minute")
    nodes = quantity(record.nodes, "node")
    text = f"{record.run} is scheduled for {when}: AWS then starts {nodes}, and the controller starts the job"
    display.line("run", f"{text}. The controller ends the run if the job has not started {minutes} after this time")
