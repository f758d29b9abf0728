"""Read torch's flight recorder and find the ranks that the others wait for.

The flight recorder is a ring buffer of a process's last collectives, for gloo and NCCL.
"""

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch.distributed as dist

from trainyard.base import StrictModel

ENTRIES = 2000  # a few hundred bytes each
_BACKENDS = ("gloo", "nccl")


class Operation(StrictModel):
    """A collective, send or receive that a rank has started and not completed."""

    name: str  # gloo:all_reduce
    group: str  # name of the process group, the same on all ranks
    number: int  # in the group's count of collectives, or of sends and receives
    point_to_point: bool


class GroupProgress(StrictModel):
    """The last collective that a rank has started in one of its process groups."""

    ranks: tuple[int, ...]
    last_started: int


class FlightSummary(StrictModel):
    """Summary of one rank's flight recorder."""

    open: tuple[Operation, ...]  # oldest first
    groups: dict[str, GroupProgress]  # by group name and backend name


def enable_flight_recorder() -> None:
    """Make process groups record their collectives. Call it before they are created."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", str(ENTRIES))


def read_entries() -> list[dict[str, Any]]:
    """Return the recorded entries of this process, oldest first."""
    from torch._C import _distributed_c10d as c10d

    # Safe while the training thread is blocked: the dump needs no cooperation of another thread.
    entries = [entry for backend in _BACKENDS for entry in _dump(c10d, backend)]
    return sorted(entries, key=lambda entry: entry["time_created_ns"])


def _dump(c10d: Any, backend: str) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads(c10d._dump_fr_trace_json(backend=backend)).get("entries", [])
    return entries


def summarize(recorded: Iterable[Mapping[str, Any]]) -> FlightSummary:
    """Summarize entries, with the member ranks of each process group of this process."""
    running: list[Operation] = []
    progress: dict[str, GroupProgress] = {}
    members_by_group = _group_members()
    for entry in recorded:
        group = str(entry["process_group"][0])
        if not entry["is_p2p"]:
            members, number = members_by_group.get(group, ()), int(entry["collective_seq_id"])
            progress[_key(group, entry["profiling_name"])] = GroupProgress(ranks=members, last_started=number)
        if is_open(entry):
            running.append(_operation(entry))
    return FlightSummary(open=tuple(running), groups=progress)


def is_open(entry: Mapping[str, Any]) -> bool:
    """Whether an operation has not completed.

    gloo marks a completed entry as retired and does not change its state; NCCL changes the state first.
    """
    return not entry["retired"] and entry["state"] != "completed"


def format_entry(entry: Mapping[str, Any]) -> str:
    """Return one line that describes an entry."""
    operation = _operation(entry)
    sizes = " ".join(f"{kind}{size}" for kind, size in zip(entry["input_dtypes"], entry["input_sizes"], strict=False))
    age = time.time() - entry["time_created_ns"] / 1e9
    state = "NOT COMPLETED" if is_open(entry) else "completed"
    group = _describe_group(entry["process_group"][1])
    return f"{operation.name} {operation.number} of {group}, {sizes}: started {age:.1f} s ago, {state}"


def _operation(entry: Mapping[str, Any]) -> Operation:
    p2p = bool(entry["is_p2p"])
    number = int(entry["p2p_seq_id" if p2p else "collective_seq_id"])
    return Operation(
        name=entry["profiling_name"], group=str(entry["process_group"][0]), number=number, point_to_point=p2p
    )


def _describe_group(description: str) -> str:
    return {"default_pg": "all ranks", "undefined": "a group"}.get(description, f"group {description}")


def _group_members() -> dict[str, tuple[int, ...]]:
    """Return the member ranks of this process's groups, by group name.

    torch has a public function for the members of one group, and none that lists the groups.
    """
    world = dist.distributed_c10d._world
    return {name: tuple(sorted(world.pg_group_ranks[group])) for group, name in world.pg_names.items()}


def find_missing_ranks(summaries: Mapping[int, FlightSummary], unresponsive: Iterable[int]) -> list[int]:
    """Return the ranks that the other ranks wait for; empty where no rank waits.

    `summaries`: of the ranks that respond. A late rank that itself waits is excluded, unless all late ranks wait: then
    their collectives were started in different orders.
    """
    blocked = {rank for rank, summary in summaries.items() if summary.open}
    late = {
        rank
        for summary in summaries.values()
        for operation in summary.open
        for rank in _late_ranks(operation, summary, summaries)
    }
    idle = set(summaries) - blocked if blocked else set()  # a send or receive does not record its peer
    return sorted((late - blocked) | set(unresponsive) or idle or late)


def _late_ranks(operation: Operation, summary: FlightSummary, summaries: Mapping[int, FlightSummary]) -> set[int]:
    """Return the responding members of the operation's group that have not started it."""
    key = _key(operation.group, operation.name)
    if operation.point_to_point or key not in summary.groups:
        return set()
    responding = [rank for rank in summary.groups[key].ranks if rank in summaries]
    started = {rank: group.last_started if (group := summaries[rank].groups.get(key)) else 0 for rank in responding}
    return {rank for rank, number in started.items() if number < operation.number}


def format_waiting_ranks(summaries: Mapping[int, FlightSummary]) -> str:
    """Return which ranks wait in which operation, as text; empty where no rank waits."""
    ranks_by_operation: dict[str, list[int]] = {}
    for rank, summary in sorted(summaries.items()):
        if summary.open:
            ranks_by_operation.setdefault(f"{summary.open[0].name} {summary.open[0].number}", []).append(rank)
    return ", ".join(f"{format_ranks(ranks)} in {operation}" for operation, ranks in ranks_by_operation.items())


def format_ranks(ranks: Sequence[int]) -> str:
    """Format rank numbers as ranges, such as `rank 3` or `ranks 0-2 5`."""
    ranges: list[list[int]] = []
    for rank in sorted(ranks):
        if ranges and rank == ranges[-1][1] + 1:
            ranges[-1][1] = rank
        else:
            ranges.append([rank, rank])
    text = " ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
    return f"rank{'s' if len(ranks) > 1 else ''} {text}"


def _key(group: str, name: str) -> str:
    """Return the key of a group on one backend: each backend counts its collectives separately."""
    return f"{group} {name.partition(':')[0]}"
