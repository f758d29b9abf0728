"""Detect a hung job, print its cause and terminate it.

The training thread reports its phase (`report_phase`). A watchdog thread in each rank publishes the phase in the job's
store, as a heartbeat. A rank whose phase exceeds its time limit marks its heartbeat as overdue. When all ranks with a
recent heartbeat are overdue, the lowest of them writes the hang report to the store; each rank prints its stacks and
last collectives, one prints the summary, and all exit with EXIT_HUNG. A rank without a recent heartbeat (stopped, or in
C code that holds the GIL) is named by the others.

If this thread cannot run or the store does not respond, faulthandler's thread terminates the process GRACE_SECONDS
after the limit.
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

from trainer.failures import flight_recorder
from trainyard.base import StrictModel
from trainyard.models.failure_messages import ALL_RANKS_WAIT, HANG, HUNG_WITH_PEERS, NO_RANK_WAITS

EXIT_HUNG = 75  # EX_TEMPFAIL of sysexits.h: a retry may succeed
GRACE_SECONDS = 30.0  # longest time from a rank's time limit to its exit
EXPORT_TIMEOUT_SECONDS = 3600.0  # one rank quantizes the final weights to int8 while the others wait
HEARTBEAT_TIMEOUT_SECONDS = 6.0  # a rank without a heartbeat for this long is unresponsive
_HEARTBEAT_INTERVAL_SECONDS = 1.0
_PRINTED_ENTRIES = 10  # of the flight recorder
_STDERR = 2


class Heartbeat(StrictModel):
    """The state that a rank publishes in the store."""

    number: int  # increases with each heartbeat
    where: str
    step: int
    phase: str
    seconds: float  # since the phase started
    flight: flight_recorder.FlightSummary | None  # set once the rank is overdue


class HangReport(StrictModel):
    """The report of a hang, written by one rank."""

    reported_by: int
    responsive_ranks: int  # number of ranks with a recent heartbeat
    summary: str


@dataclass(frozen=True)
class _ReceivedHeartbeat:
    """Another rank's last heartbeat and the local time of its receipt: clocks of hosts are not compared."""

    beat: Heartbeat
    received_at: float = field(default_factory=time.monotonic)

    @property
    def is_stale(self) -> bool:
        return time.monotonic() - self.received_at > HEARTBEAT_TIMEOUT_SECONDS


def process_group_timeout(longest_seconds: float) -> timedelta:
    """Return the timeout of process groups, which terminates a hang that the watchdog did not.

    It exceeds the longest limit of the watchdog, and does not follow the phase: its timeout error names no rank, and an
    operation has the timeout that was valid when it was created (gloo: https://github.com/pytorch/pytorch/pull/167052;
    NCCL: ProcessGroupNCCL assigns it to each work item), so that no later change would apply to a hung operation.
    """
    return timedelta(seconds=longest_seconds + GRACE_SECONDS)


def describe_rank_location(device: torch.device, local_rank: int) -> str:
    """Return the host, the local rank, and the GPU's name and UUID, for messages."""
    device_text = "CPU"
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        device_text = f"{properties.name} GPU-{properties.uuid}"
    return f"{socket.gethostname()}, local rank {local_rank}, {device_text}"


class Watchdog:
    """Watches the training thread of one rank. Create it after the process group, on every rank."""

    def __init__(self, *, rank: int, world_size: int, where: str, timeout_seconds: float) -> None:
        """`where`: this rank's host and GPU; `timeout_seconds`: limit of the setup, the first phase."""
        self._rank, self._ranks, self._where = rank, range(world_size), where
        # A separate client: the training thread's may be blocked in a call.
        self._store = PrefixStore("watchdog", dist.distributed_c10d._get_default_store().clone())
        self._store.set_timeout(timedelta(seconds=HEARTBEAT_TIMEOUT_SECONDS))
        self._received: dict[int, _ReceivedHeartbeat] = {}
        self._number = 0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        self.report_phase(0, "setup", timeout_seconds)
        self._arm(0)
        self._send_heartbeat(overdue=False)  # so that every rank is known from the start
        self._thread.start()

    def report_phase(self, step: int, phase: str, timeout_seconds: float) -> None:
        """Record that the training thread starts a phase, and its time limit.

        Cheap enough for each phase of each step.
        """
        # One assignment: atomic for the watchdog thread.
        self._now = (step, phase, time.monotonic(), timeout_seconds)

    def close(self) -> None:
        """Stop the watchdog."""
        self._closed.set()
        self._thread.join(timeout=2 * HEARTBEAT_TIMEOUT_SECONDS)
        faulthandler.cancel_dump_traceback_later()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        while not self._closed.wait(_HEARTBEAT_INTERVAL_SECONDS):
            step, phase, since, limit = self._now
            elapsed = time.monotonic() - since
            self._arm(elapsed)
            try:
                self._send_heartbeat(overdue=elapsed > limit)
                if elapsed > limit and (report := self._hang_report()):
                    self._terminate(report)
            except Exception as error:  # an error of the watchdog must not terminate a healthy job
                if elapsed > limit + HEARTBEAT_TIMEOUT_SECONDS:
                    state = _format_state(self._rank, self._where, step, phase, elapsed)
                    self._print_state()
                    _print(f"hang: {state}; other ranks: unknown, since the job's store does not respond: {error}")
                    os._exit(EXIT_HUNG)

    def _arm(self, elapsed: float) -> None:
        """Postpone the exit by faulthandler; not called again, the process exits GRACE_SECONDS after the limit."""
        *_, limit = self._now
        faulthandler.dump_traceback_later(max(limit - elapsed, 0) + GRACE_SECONDS, exit=True, file=_STDERR)

    def _send_heartbeat(self, *, overdue: bool) -> None:
        step, phase, since, _ = self._now
        self._number += 1
        beat = Heartbeat(
            number=self._number,
            where=self._where,
            step=step,
            phase=phase,
            seconds=time.monotonic() - since,
            flight=flight_recorder.summarize(flight_recorder.read_entries()) if overdue else None,
        )
        self._store.set(f"heartbeat/{self._rank}", beat.model_dump_json())

    def _hang_report(self) -> HangReport | None:
        """Return the hang report once all responsive ranks are overdue. The lowest of these ranks creates it."""
        if not self._store.check(["report"]):
            if any(self._is_overdue(rank) for rank in self._ranks[: self._rank]):
                return None  # that rank creates the report; if it exits first, the next rank does
            received = {rank: entry for rank in self._ranks if (entry := self._receive(rank))}
            if any(entry.beat.flight is None and not entry.is_stale for entry in received.values()):
                return None  # a responsive rank is within its limit
            responsive = [rank for rank, entry in received.items() if not entry.is_stale]
            summary = format_hang({rank: entry.beat for rank, entry in received.items()}, responsive, len(self._ranks))
            report = HangReport(reported_by=self._rank, responsive_ranks=len(responsive), summary=summary)
            self._store.compare_set("report", "", report.model_dump_json())  # keeps a report that exists
        return HangReport.model_validate_json(self._store.get("report"))

    def _is_overdue(self, rank: int) -> bool:
        received = self._receive(rank)
        return received is not None and received.beat.flight is not None and not received.is_stale

    def _receive(self, rank: int) -> _ReceivedHeartbeat | None:
        """Return the rank's last heartbeat; None if it has sent none."""
        key = f"heartbeat/{rank}"
        if not self._store.check([key]):
            return None
        beat = Heartbeat.model_validate_json(self._store.get(key))
        if rank not in self._received or self._received[rank].beat.number != beat.number:
            self._received[rank] = _ReceivedHeartbeat(beat)
        return self._received[rank]

    def _terminate(self, report: HangReport) -> None:
        """Print stacks and collectives, then the summary, and exit.

        The exit waits until all responsive ranks have printed: torchrun terminates the others at the first exit.
        """
        self._print_state()
        if report.reported_by == self._rank:
            self._wait_until_printed(report.responsive_ranks - 1)
            _print(report.summary)
        else:  # the controller uses a rank's last line as its failure message, and ignores this message
            _print(f"rank {self._rank}| {HUNG_WITH_PEERS}: rank {report.reported_by} reports the cause")
        self._store.add("printed", 1)
        self._wait_until_printed(report.responsive_ranks)
        os._exit(EXIT_HUNG)

    def _wait_until_printed(self, ranks: int) -> None:
        deadline = time.monotonic() + HEARTBEAT_TIMEOUT_SECONDS
        while self._store.add("printed", 0) < ranks and time.monotonic() < deadline:
            time.sleep(0.1)

    def _print_state(self) -> None:
        recorded = flight_recorder.read_entries()[-_PRINTED_ENTRIES:]
        entries = [f"recent collective: {flight_recorder.format_entry(entry)}" for entry in recorded]
        lines = [*_stacks(), *(entries or ["no collective has been started"])]
        _print(*(f"rank {self._rank}| {line}" for line in lines))


def format_hang(beats: Mapping[int, Heartbeat], responsive: Sequence[int], world_size: int) -> str:
    """Return the hang in one line: the waiting ranks, the ranks that they wait for, and the location of these.

    `beats`: the last heartbeat of each rank.
    """
    summaries = {rank: flight for rank in responsive if (flight := beats[rank].flight)}
    unresponsive = [rank for rank in range(world_size) if rank not in responsive]
    missing = flight_recorder.find_missing_ranks(summaries, unresponsive)
    details = [
        _describe_rank(rank, beats.get(rank), responsive=rank not in unresponsive)
        for rank in missing or sorted(responsive)
    ]
    waiting = flight_recorder.format_waiting_ranks(summaries)
    if missing:
        cause = f"{waiting} waiting for" if waiting else "no progress, and no collective is open:"
    else:
        cause = f"{waiting}, {ALL_RANKS_WAIT}:" if waiting else f"no progress, and {NO_RANK_WAITS}:"
    return f"{HANG}{cause} {'; '.join(details)}"


def _describe_rank(rank: int, beat: Heartbeat | None, *, responsive: bool) -> str:
    if beat is None:
        return f"rank {rank}, which has sent no heartbeat"
    if responsive:
        return _format_state(rank, beat.where, beat.step, beat.phase, beat.seconds)
    return f"rank {rank} ({beat.where}), which does not respond: last heartbeat in {beat.phase} of step {beat.step}"


def _format_state(rank: int, where: str, step: int, phase: str, seconds: float) -> str:
    return f"rank {rank} ({where}), in {phase} of step {step} for {seconds:.0f} s"


def _stacks() -> list[str]:
    """Return the stacks of all other threads of this process, the innermost call first."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        _, _, others = file.read().partition("\n\n")  # this thread's stack is first
    return others.splitlines()


def _print(*lines: str) -> None:
    """Write to stderr in one call, since other ranks write to the same file.

    Not by `logging`: the hung thread may hold the lock of a handler.
    """
    os.write(_STDERR, "".join(f"{line}\n" for line in lines).encode())
