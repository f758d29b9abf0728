"""A run's record: minted by its launch, given new deadlines by a later one, refused where its capacity ends first."""

import secrets
from datetime import UTC, datetime

from trainyard.base import InputError, Problem
from trainyard.models.manifest import Manifest
from trainyard.models.run import RunRecord, deadline_of


def mint_run(job: str, now: float) -> str:
    """A run id that sorts by time: `20261121-183012-<job>-4f1a`."""
    return f"{datetime.fromtimestamp(now, UTC):%Y%m%d-%H%M%S}-{job}-{secrets.token_hex(2)}"


def new_record(manifest: Manifest, now: float) -> RunRecord:
    """A run of this manifest, launched now."""
    processes = {group.processes_per_node for group in manifest.groups}
    assert len(processes) == 1, "torchrun starts the same number of processes on each node"
    return RunRecord(
        run=mint_run(manifest.job.name, now),
        created=now,
        deadline=deadline_of(now, manifest.limits, manifest.ends),
        manifest=manifest.digest(),
        nodes=manifest.nodes,
        processes_per_node=processes.pop(),
        job=manifest.job,
        limits=manifest.limits,
    )


def retimed(run: RunRecord, manifest: Manifest) -> RunRecord:
    """A live run with the manifest's deadlines."""
    deadline = deadline_of(run.created, manifest.limits, manifest.ends)
    return run.model_copy(update={"limits": manifest.limits, "deadline": deadline})


def minutes_of(run: RunRecord) -> str:
    """How long the run may take from its launch on."""
    return f"{round((run.deadline - run.created) / 60, 1):g} minutes"


def require_time(manifest: Manifest, now: float) -> None:
    """Raises InputError for each group whose capacity AWS takes away before a bring-up that begins now is over."""
    minutes = manifest.limits.bring_up_minutes
    problems = []
    for group in manifest.groups:
        if group.ends is None or group.ends >= now + minutes * 60:
            continue
        left = (group.ends - now) / 60
        when = f"that is in {left:.0f} minutes" if left > 0 else "that is over"
        problems.append(
            Problem(
                key=f"end of the capacity of group {group.name}",
                value=moment(group.ends),
                why=f"{when}, and a launch may take {minutes:g} (launch.bring_up_minutes)",
                fix="Name a reservation or Capacity Block that lasts longer, or a shorter launch.bring_up_minutes",
            )
        )
    if problems:
        raise InputError(problems)


def moment(when: float) -> str:
    """A Unix time as people read it."""
    return f"{datetime.fromtimestamp(when, UTC):%Y-%m-%d %H:%M:%S} UTC"
