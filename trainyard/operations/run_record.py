"""A run's record: created by its launch, given new deadlines by a later launch."""

import secrets
from datetime import UTC, datetime

from trainyard.errors import InputError, Problem
from trainyard.models.manifest import Manifest
from trainyard.models.run import RunRecord, compute_run_deadline
from trainyard.quantity import quantity
from trainyard.times import format_time


def create_run_id(job: str, now: float) -> str:
    """Return a new run id, which sorts by time: `20261121-183012-<job>-4f1a`. `now`: Unix time in seconds."""
    return f"{datetime.fromtimestamp(now, UTC):%Y%m%d-%H%M%S}-{job}-{secrets.token_hex(2)}"


def create_run_record(manifest: Manifest, now: float, scheduled_start: float | None = None) -> RunRecord:
    """Return the record of a new run of this manifest, launched at `now`.

    `scheduled_start`: when AWS starts its nodes; None: the launch starts them. Unix times in seconds.
    """
    processes = {group.processes_per_node for group in manifest.groups}
    assert len(processes) == 1, "torchrun starts the same number of processes on each node"
    return RunRecord(
        run=create_run_id(manifest.job.name, now),
        created=now,
        deadline=compute_run_deadline(scheduled_start or now, manifest.limits, manifest.capacity_end_time),
        manifest_digest=manifest.digest(),
        node_digest=manifest.node_digest(),
        instance_digest=manifest.instance_digest(),
        images=manifest.images,
        nodes=manifest.job_nodes,
        spares=manifest.spares,
        processes_per_node=processes.pop(),
        job=manifest.job,
        limits=manifest.limits,
        block_reservation_ids=manifest.block_reservation_ids,
        scheduled_start=scheduled_start,
    )


def with_deadlines(run: RunRecord, manifest: Manifest) -> RunRecord:
    """Return the record of an active run with the deadlines and images of the manifest."""
    deadline = compute_run_deadline(run.start, manifest.limits, manifest.capacity_end_time)
    changes = {"limits": manifest.limits, "deadline": deadline, "images": manifest.images, "spares": manifest.spares}
    return run.model_copy(update={**changes, "block_reservation_ids": manifest.block_reservation_ids})


def format_run_duration(run: RunRecord) -> str:
    """Return the time from the run's launch, or its scheduled start, to its deadline, in minutes."""
    return quantity(round((run.deadline - run.start) / 60, 1), "minute")


def require_capacity_time(manifest: Manifest, now: float) -> None:
    """Raise InputError for each group whose capacity ends within the startup timeout.

    The timeout starts at `now`, or at the start of the capacity if that is later.
    """
    minutes = manifest.limits.startup_timeout_minutes
    problems = []
    for group in manifest.groups:
        end_time, start = group.capacity_end_time, max(now, group.capacity_start_time or 0.0)
        if end_time is None or end_time >= start + minutes * 60:
            continue
        remaining_minutes = (end_time - start) / 60
        since = "after its start" if start > now else "from now"
        when = (
            f"that is {quantity(round(remaining_minutes), 'minute')} {since}"
            if remaining_minutes > 0
            else "that is in the past"
        )
        problems.append(
            Problem(
                f"end of the capacity of group {group.name}",
                format_time(end_time),
                f"{when}, and a launch may take {quantity(minutes, 'minute')} (launch.startup_timeout_minutes)",
                "Name a reservation or Capacity Block that ends later, or set a shorter launch.startup_timeout_minutes",
                "capacity_ends_during_startup",
            )
        )
    if problems:
        raise InputError(problems)
