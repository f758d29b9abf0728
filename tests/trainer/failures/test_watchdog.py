"""The watchdog terminates a hung job of three ranks and names the missing rank; a slow job continues."""

import multiprocessing
import os
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
from torch._C._distributed_c10d import TCPStore

from tests.polling import eventually
from tests.trainer.failures import hanging_job
from trainer.failures.watchdog import EXIT_HUNG, Heartbeat, format_hang
from trainyard.models.failure_messages import HUNG_WITH_PEERS
from trainyard.node.controller.failure_analysis import is_caused_by_peer

pytestmark = pytest.mark.slow

# Processes are forked from a server with torch imported: the import takes longer than a test.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.trainer.failures.hanging_job"])


@pytest.fixture(scope="module", autouse=True)
def fork_server() -> Iterator[None]:
    """Stop the process's fork server: the server of the data loader, which other tests start, blocks signals."""
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
    yield
    forkserver._forkserver._stop()  # type: ignore[attr-defined]


class HangingJob:
    """Three ranks, with the store in this process."""

    def __init__(self, behaviour: str, folder: Path) -> None:
        self.store: Any = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.signal_file, self.folder = folder / "signal", folder
        arguments = [(behaviour, self.signal_file, rank, self.store.port) for rank in range(3)]
        self.ranks = [FORKS.Process(target=hanging_job.run, args=rank_arguments) for rank_arguments in arguments]
        for rank in self.ranks:
            rank.start()

    def stderr(self, rank: int) -> str:
        return (self.folder / f"stderr.{rank}").read_text()

    def wait(self, *ranks: int) -> list[int | None]:
        """Return exit codes; None for a rank that is still running."""
        for rank in ranks:
            self.ranks[rank].join(timeout=60)
        return [self.ranks[rank].exitcode for rank in ranks]

    def reach_step_three(self) -> None:
        files = [self.signal_file.with_suffix(f".{rank}") for rank in range(3)]
        eventually(lambda: all(file.exists() for file in files), "step 3")


@pytest.fixture
def start_job(tmp_path: Path) -> Iterator[Callable[[str], HangingJob]]:
    jobs: list[HangingJob] = []

    def start(behaviour: str) -> HangingJob:
        jobs.append(HangingJob(behaviour, tmp_path))
        return jobs[-1]

    yield start
    for process in [process for job in jobs for process in job.ranks]:
        process.kill()
        process.join(timeout=20)


def summaries(job: HangingJob) -> list[str]:
    return [line for rank in range(3) for line in job.stderr(rank).splitlines() if line.startswith("hang: ")]


def test_missing_rank_is_named_and_all_ranks_print_stacks(start_job: Callable[[str], HangingJob]) -> None:
    job = start_job("sleep")
    assert job.wait(0, 1, 2) == [EXIT_HUNG] * 3
    (summary,) = summaries(job)
    assert summary.startswith("hang: ranks 0-1 in gloo:all_reduce 3 waiting for rank 2 (")
    assert os.uname().nodename in summary
    assert "local rank 2, CPU), in forward of step 3 for" in summary
    assert "in sleep_forever" in job.stderr(2)
    for rank in (0, 1):
        assert "in all_reduce" in job.stderr(rank)
        assert f"rank {rank}| recent collective: gloo:all_reduce 3 of all ranks, Float[4]: started" in job.stderr(rank)
        assert "NOT COMPLETED" in job.stderr(rank)
    assert job.stderr(0).endswith(f"{summary}\n")
    last_line = job.stderr(1).splitlines()[-1]
    assert last_line == f"rank 1| {HUNG_WITH_PEERS}: rank 0 reports the cause"
    assert is_caused_by_peer(last_line)
    assert not is_caused_by_peer(summary)


def test_unresponsive_ranks_are_named(start_job: Callable[[str], HangingJob]) -> None:
    """One rank is stopped; one holds the GIL and is terminated by faulthandler, which does not need it."""
    job = start_job("silent")
    assert job.wait(0) == [EXIT_HUNG]
    (summary,) = summaries(job)
    assert summary.startswith("hang: rank 0 in gloo:all_reduce 3 waiting for rank 1 (")
    assert "local rank 1, CPU), which does not respond: last heartbeat in" in summary
    assert "local rank 2, CPU), which does not respond: last heartbeat in" in summary
    assert job.wait(1) == [1]
    assert "in hold_the_gil" in job.stderr(1)
    assert job.ranks[2].is_alive()  # torchrun terminates it by SIGKILL


def test_slow_phase_is_not_a_hang(start_job: Callable[[str], HangingJob]) -> None:
    job = start_job("slow")
    assert job.wait(0, 1, 2) == [0, 0, 0]
    assert summaries(job) == []


def test_job_continues_without_its_store(start_job: Callable[[str], HangingJob]) -> None:
    job = start_job("without_store")
    job.reach_step_three()
    job.store = None
    job.signal_file.touch()
    assert job.wait(0, 1, 2) == [0, 0, 0]
    assert summaries(job) == []


def test_hang_is_terminated_without_the_store(start_job: Callable[[str], HangingJob]) -> None:
    job = start_job("sleep")
    job.reach_step_three()
    job.store = None
    assert job.wait(0, 1, 2) == [EXIT_HUNG] * 3
    lines = summaries(job)
    assert len(lines) == 3
    assert "in sleep_forever" in job.stderr(2)
    assert all("other ranks: unknown, since the job's store does not respond" in line for line in lines)


def test_all_ranks_are_named_if_none_waits() -> None:
    beat = Heartbeat(number=1, where="a, local rank 0, CPU", step=3, phase="data", seconds=9.0, flight=None)
    summary = format_hang({0: beat, 1: beat}, [0, 1], 2)
    assert summary.startswith(
        "hang: no progress, and no rank waits for another: rank 0 (a, local rank 0, CPU), in data of"
    )
    assert "; rank 1 (" in summary
