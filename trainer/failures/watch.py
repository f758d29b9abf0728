"""A hung job ends, and says why: the stacks of all ranks, the last collectives of each, and who did not arrive at them.

The training thread tells where it is (`reached`). A thread beside it publishes that in the job's store, as a heartbeat.
When its rank has reached nothing for its time it says so there; when all ranks that live have said so, the lowest of
them declares the hang, each prints its stacks, one prints the summary, and all leave with EXIT_HUNG. A rank that does
not answer (stopped, or in C code that keeps Python's lock) is named by the others. What this thread can't end, since it
can't run or the store does not answer, faulthandler's own thread ends GRACE_SECONDS later.
"""

import faulthandler
import os
import socket
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from types import TracebackType
from typing import Self

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from trainer.failures import flight
from trainyard.base import Contract

EXIT_HUNG = 75  # EX_TEMPFAIL of sysexits.h: begun again, it may well go on
GRACE_SECONDS = 30.0  # from the end of a rank's time to its own end, at the most
PATIENCE = 3.0  # times the usual limit: for the first step, which compiles, a held-out loss, a checkpoint, the setup
EXPORT_SECONDS = 3600.0  # for a finished run's weights, whose 8 bits one rank makes while the others wait
_BEAT_SECONDS = 1.0
SILENT_SECONDS = 6.0  # without a heartbeat for so long, a rank does not live
_SHOWN = 10  # of the flight recorder's entries
_STDERR = 2


class Beat(Contract):
    """What a rank tells in the store."""

    number: int  # grows with each heartbeat
    where: str
    step: int
    phase: str
    seconds: float  # for which it has been there
    flight: flight.Flight | None  # once its time is over


class Verdict(Contract):
    """The hang, as one rank declared it."""

    by: int
    living: int
    summary: str


@dataclass(frozen=True)
class _Seen:
    """Another rank's last heartbeat, and when it came here: clocks of hosts are not compared."""

    beat: Beat
    at: float = field(default_factory=time.monotonic)

    @property
    def silent(self) -> bool:
        return time.monotonic() - self.at > SILENT_SECONDS


def group_timeout(timeout_seconds: float) -> timedelta:
    """For process groups: they end a hang that the watch, for whatever reason, did not end.

    After the longest time for which the watch lets a rank be late for the others: a group can't tell one phase from
    another, and what ends by its timeout names nobody.
    """
    return timedelta(seconds=PATIENCE * timeout_seconds + GRACE_SECONDS)


def place_of(device: torch.device, local_rank: int) -> str:
    """Where a rank is, for whoever looks after it: host, local rank, and the GPU's name and UUID."""
    chip = "CPU"
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        chip = f"{properties.name} GPU-{properties.uuid}"
    return f"{socket.gethostname()}, local rank {local_rank}, {chip}"


class Watch:
    """Made after the process group, on every rank; closed when the loop has ended, well or by an exception."""

    def __init__(self, *, rank: int, world_size: int, where: str, timeout_seconds: float) -> None:
        self._rank, self._ranks, self._where, self._limit = rank, range(world_size), where, timeout_seconds
        # A client of its own: the training thread's may be blocked in a call of its.
        self._store = PrefixStore("watch", dist.distributed_c10d._get_default_store().clone())
        self._store.set_timeout(timedelta(seconds=SILENT_SECONDS))
        self._seen: dict[int, _Seen] = {}
        self._number = 0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)
        self.reached(0, "start")
        self._arm(0)
        self._beat(overdue=False)  # whatever comes: each rank was heard of
        self._thread.start()

    def reached(self, step: int, phase: str, seconds: float | None = None) -> None:
        """The training thread is here now, and may stay for so long: timeout_seconds where nothing is said. Costs
        nothing: to be called at each phase of each step."""
        limit = self._limit if seconds is None else seconds
        self._now = (step, phase, time.monotonic(), limit)  # one assignment: the other thread sees all of it or none

    def close(self) -> None:
        self._closed.set()
        self._thread.join(timeout=2 * SILENT_SECONDS)
        faulthandler.cancel_dump_traceback_later()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _watch(self) -> None:
        while not self._closed.wait(_BEAT_SECONDS):
            step, phase, since, limit = self._now
            spent = time.monotonic() - since
            self._arm(spent)
            try:
                self._beat(overdue=spent > limit)
                if spent > limit and (verdict := self._verdict()):
                    self._end(verdict)
            except Exception as error:  # whatever it is: a watch that fails must not end a job that goes well
                if spent > limit + SILENT_SECONDS:
                    told = _at(self._rank, self._where, step, phase, spent)
                    self._print_state()
                    _print(f"hang: {told}; who else hangs is not known, the job's store does not answer: {error}")
                    os._exit(EXIT_HUNG)

    def _arm(self, spent: float) -> None:
        """While this thread runs it puts off the end that faulthandler's would bring."""
        *_, limit = self._now
        faulthandler.dump_traceback_later(max(limit - spent, 0) + GRACE_SECONDS, exit=True, file=_STDERR)

    def _beat(self, *, overdue: bool) -> None:
        step, phase, since, _ = self._now
        self._number += 1
        beat = Beat(
            number=self._number,
            where=self._where,
            step=step,
            phase=phase,
            seconds=time.monotonic() - since,
            flight=flight.flight_of(flight.entries()) if overdue else None,
        )
        self._store.set(f"beat/{self._rank}", beat.model_dump_json())

    def _verdict(self) -> Verdict | None:
        """Once all that live are overdue. Only the lowest of them looks at all the others."""
        if not self._store.check(["verdict"]):
            if any(self._overdue(rank) for rank in self._ranks[: self._rank]):
                return None  # that one looks, and if it dies the next one does
            seen = {rank: found for rank in self._ranks if (found := self._look(rank))}
            if any(one.beat.flight is None and not one.silent for one in seen.values()):
                return None  # a rank that lives has time left
            living = [rank for rank, one in seen.items() if not one.silent]
            summary = summary_of({rank: one.beat for rank, one in seen.items()}, living, len(self._ranks))
            verdict = Verdict(by=self._rank, living=len(living), summary=summary)
            self._store.compare_set("verdict", "", verdict.model_dump_json())  # the first one stays
        return Verdict.model_validate_json(self._store.get("verdict"))

    def _overdue(self, rank: int) -> bool:
        seen = self._look(rank)
        return seen is not None and seen.beat.flight is not None and not seen.silent

    def _look(self, rank: int) -> _Seen | None:
        """None where the rank has never told anything."""
        key = f"beat/{rank}"
        if not self._store.check([key]):
            return None
        beat = Beat.model_validate_json(self._store.get(key))
        if rank not in self._seen or self._seen[rank].beat.number != beat.number:
            self._seen[rank] = _Seen(beat)
        return self._seen[rank]

    def _end(self, verdict: Verdict) -> None:
        """Stacks, entries, at last the summary, and out; not before all that live have told theirs, for torchrun ends
        the others as soon as one has left."""
        self._print_state()
        if verdict.by == self._rank:
            self._wait_until_said(verdict.living - 1)
            _print(verdict.summary)
        else:  # the controller takes a rank's last line for why it failed, and this one for none of its own
            _print(f"rank {self._rank}| hung with the others: rank {verdict.by} says why")
        self._store.add("said", 1)
        self._wait_until_said(verdict.living)
        os._exit(EXIT_HUNG)

    def _wait_until_said(self, ranks: int) -> None:
        deadline = time.monotonic() + SILENT_SECONDS
        while self._store.add("said", 0) < ranks and time.monotonic() < deadline:
            time.sleep(0.1)

    def _print_state(self) -> None:
        entries = [flight.in_words(entry) for entry in flight.entries()[-_SHOWN:]]
        last = [f"last of its collectives: {entry}" for entry in entries] or ["it began no collective"]
        _print(*(f"rank {self._rank}| {line}" for line in [*_stacks(), *last]))


def summary_of(beats: Mapping[int, Beat], living: Sequence[int], world_size: int) -> str:
    """The hang in one line: who waits, for whom, and where that one is. `beats`: the last of each rank."""
    flights = {rank: found for rank in living if (found := beats[rank].flight)}
    silent = [rank for rank in range(world_size) if rank not in living]
    missing = flight.absent(flights, silent)
    named = [_of(rank, beats.get(rank), answers=rank not in silent) for rank in missing or sorted(living)]
    waiting = flight.waits(flights)
    if missing:
        beginning = f"{waiting} waiting for" if waiting else "no progress, and no collective is open:"
    else:
        beginning = f"{waiting}, where all have arrived:" if waiting else "no progress, and no rank waits for another:"
    return f"hang: {beginning} {'; '.join(named)}"


def _of(rank: int, beat: Beat | None, *, answers: bool) -> str:
    if beat is None:
        return f"rank {rank}, which was never heard of"
    if answers:
        return _at(rank, beat.where, beat.step, beat.phase, beat.seconds)
    return f"rank {rank} ({beat.where}), which does not answer: last heard of in {beat.phase} of step {beat.step}"


def _at(rank: int, where: str, step: int, phase: str, seconds: float) -> str:
    return f"rank {rank} ({where}), in {phase} of step {step} for {seconds:.0f} s"


def _stacks() -> list[str]:
    """Of all other threads of this process, the innermost call first."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        _, _, others = file.read().partition("\n\n")  # this thread's come first
    return others.splitlines()


def _print(*lines: str) -> None:
    """At once: other ranks write to the same place."""
    os.write(_STDERR, "".join(f"{line}\n" for line in lines).encode())
