"""torch's flight recorder, a ring buffer of a process's last collectives on gloo and NCCL alike, and what the buffers
of all ranks say together: who waits, and for whom."""

import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch.distributed as dist

from trainyard.base import Contract

ENTRIES = 2000  # a few hundred bytes each
_BACKENDS = ("gloo", "nccl")


class Operation(Contract):
    """A collective, or a send or receive, that a rank has begun and not ended."""

    name: str  # gloo:all_reduce
    group: str  # its process group's name, the same on all ranks
    number: int  # in the group's own count of collectives, or of sends and receives
    point_to_point: bool


class Place(Contract):
    """How far a rank is in the collectives of one of its groups."""

    ranks: tuple[int, ...]
    begun: int  # number of the last collective that was begun


class Flight(Contract):
    """One rank's buffer, in short."""

    open: tuple[Operation, ...]  # oldest first
    places: dict[str, Place]  # by the group's name and the backend's


def switch_on() -> None:
    """Let process groups record. They read this when they are made."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", str(ENTRIES))


def entries() -> list[dict[str, Any]]:
    """What the buffers of this process hold, oldest first."""
    from torch._C import _distributed_c10d as c10d

    # From all threads, and without the training thread's help: it may be blocked.
    found = [entry for backend in _BACKENDS for entry in _dump(c10d, backend)]
    return sorted(found, key=lambda entry: entry["time_created_ns"])


def _dump(c10d: Any, backend: str) -> list[dict[str, Any]]:
    held: list[dict[str, Any]] = json.loads(c10d._dump_fr_trace_json(backend=backend)).get("entries", [])
    return held


def flight_of(recorded: Iterable[Mapping[str, Any]]) -> Flight:
    """In short, with the members of the groups that this process is in."""
    running: list[Operation] = []
    places: dict[str, Place] = {}
    groups = _groups()
    for entry in recorded:
        group = str(entry["process_group"][0])
        if not entry["is_p2p"]:
            members, number = groups.get(group, ()), int(entry["collective_seq_id"])
            places[_key(group, entry["profiling_name"])] = Place(ranks=members, begun=number)
        if is_open(entry):
            running.append(_operation(entry))
    return Flight(open=tuple(running), places=places)


def is_open(entry: Mapping[str, Any]) -> bool:
    """gloo retires what has ended and leaves its state as it was; NCCL sets the state first."""
    return not entry["retired"] and entry["state"] != "completed"


def in_words(entry: Mapping[str, Any]) -> str:
    """One entry as a line."""
    one = _operation(entry)
    sizes = " ".join(f"{kind}{size}" for kind, size in zip(entry["input_dtypes"], entry["input_sizes"], strict=False))
    age = time.time() - entry["time_created_ns"] / 1e9
    state = "NOT ENDED" if is_open(entry) else "ended"
    return f"{one.name} {one.number} of {_about(entry['process_group'][1])}, {sizes}: begun {age:.1f} s ago, {state}"


def _operation(entry: Mapping[str, Any]) -> Operation:
    p2p = bool(entry["is_p2p"])
    number = int(entry["p2p_seq_id" if p2p else "collective_seq_id"])
    return Operation(
        name=entry["profiling_name"], group=str(entry["process_group"][0]), number=number, point_to_point=p2p
    )


def _about(description: str) -> str:
    return {"default_pg": "all ranks", "undefined": "a group"}.get(description, f"group {description}")


def _groups() -> dict[str, tuple[int, ...]]:
    """Members of this process's groups, by the group's name. torch tells the members of one group in public, and the
    list of groups nowhere else."""
    world = dist.distributed_c10d._world
    return {name: tuple(sorted(world.pg_group_ranks[group])) for group, name in world.pg_names.items()}


def absent(flights: Mapping[int, Flight], silent: Iterable[int]) -> list[int]:
    """Ranks that others wait for, of those that answer (`flights`) and those that do not. Empty where nobody waits.

    A rank that waits itself is not to blame, unless all that are late do: their collectives came in different orders.
    """
    blocked = {rank for rank, flight in flights.items() if flight.open}
    late = {rank for flight in flights.values() for one in flight.open for rank in _late(one, flight, flights)}
    idle = set(flights) - blocked if blocked else set()  # of a send or receive nobody knows who should have come
    return sorted((late - blocked) | set(silent) or idle or late)


def _late(one: Operation, flight: Flight, flights: Mapping[int, Flight]) -> set[int]:
    """Members of the operation's group that answer and have not begun it."""
    key = _key(one.group, one.name)
    if one.point_to_point or key not in flight.places:
        return set()
    answering = [rank for rank in flight.places[key].ranks if rank in flights]
    begun = {rank: place.begun if (place := flights[rank].places.get(key)) else 0 for rank in answering}
    return {rank for rank, number in begun.items() if number < one.number}


def waits(flights: Mapping[int, Flight]) -> str:
    """In words: which ranks wait in what. Empty where none does."""
    first: dict[str, list[int]] = {}
    for rank, flight in sorted(flights.items()):
        if flight.open:
            first.setdefault(f"{flight.open[0].name} {flight.open[0].number}", []).append(rank)
    return ", ".join(f"{ranks_in_words(ranks)} in {what}" for what, ranks in first.items())


def ranks_in_words(ranks: Sequence[int]) -> str:
    """Such as: rank 3; ranks 0-2 5."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    told = " ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    return f"rank{'s' if len(ranks) > 1 else ''} {told}"


def _key(group: str, name: str) -> str:
    """One group counts apart on each of its backends."""
    return f"{group} {name.partition(':')[0]}"
