"""A hung job of three ranks ends by itself and names who did not come; one that is slow is left alone."""

import multiprocessing
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch._C._distributed_c10d import TCPStore

from tests.polling import eventually
from tests.trainer.failures import hanging
from trainer.failures.watch import EXIT_HUNG, Beat, summary_of

# Processes that are forked from one that has imported torch already: importing takes longer than a test.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.trainer.failures.hanging"])


class Gang:
    """Three ranks whose store is this process's."""

    def __init__(self, way: str, folder: Path) -> None:
        self.store: Any = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.sign, self.folder = folder / "sign", folder
        given = [(way, self.sign, rank, self.store.port) for rank in range(3)]
        self.ranks = [FORKS.Process(target=hanging.run, args=each) for each in given]
        for rank in self.ranks:
            rank.start()

    def said(self, rank: int) -> str:
        return (self.folder / f"stderr.{rank}").read_text()

    def ended(self, *ranks: int) -> list[int | None]:
        """Exit codes; none of one that runs still."""
        for rank in ranks:
            self.ranks[rank].join(timeout=60)
        return [self.ranks[rank].exitcode for rank in ranks]

    def reach_step_three(self) -> None:
        signs = [self.sign.with_suffix(f".{rank}") for rank in range(3)]
        eventually(lambda: all(one.exists() for one in signs), "step 3")


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[Callable[[str], Gang]]:
    made: list[Gang] = []

    def make(way: str) -> Gang:
        made.append(Gang(way, tmp_path))
        return made[-1]

    yield make
    for process in [process for one in made for process in one.ranks]:
        process.kill()
        process.join(timeout=20)


def summaries(one: Gang) -> list[str]:
    return [line for rank in range(3) for line in one.said(rank).splitlines() if line.startswith("hang: ")]


def test_a_rank_that_does_not_come_is_named_and_all_tell_their_stacks(gang: Callable[[str], Gang]) -> None:
    job = gang("sleep")
    assert job.ended(0, 1, 2) == [EXIT_HUNG] * 3
    (summary,) = summaries(job)
    assert summary.startswith("hang: ranks 0-1 in gloo:all_reduce 3 waiting for rank 2 (")
    assert os.uname().nodename in summary
    assert "local rank 2, CPU), in forward of step 3 for" in summary
    assert "in sleeping_forever" in job.said(2)
    for rank in (0, 1):
        assert "in all_reduce" in job.said(rank)
        assert f"rank {rank}| last of its collectives: gloo:all_reduce 3 of all ranks, Float[4]: begun" in job.said(
            rank
        )
        assert "NOT ENDED" in job.said(rank)
    assert job.said(0).endswith(f"{summary}\n")
    assert job.said(1).endswith("rank 1| hung with the others: rank 0 says why\n")


def test_ranks_that_do_not_answer_are_named(gang: Callable[[str], Gang]) -> None:
    """One is stopped; one keeps Python's lock, and is ended by faulthandler, which needs none."""
    job = gang("silent")
    assert job.ended(0) == [EXIT_HUNG]
    (summary,) = summaries(job)
    assert summary.startswith("hang: rank 0 in gloo:all_reduce 3 waiting for rank 1 (")
    assert "local rank 1, CPU), which does not answer: last heard of in" in summary
    assert "local rank 2, CPU), which does not answer: last heard of in" in summary
    assert job.ended(1) == [1]
    assert "in keeping_the_lock" in job.said(1)
    assert job.ranks[2].is_alive()  # it is torchrun that ends it, by SIGKILL


def test_a_rank_that_takes_its_own_time_is_waited_for(gang: Callable[[str], Gang]) -> None:
    job = gang("slow")
    assert job.ended(0, 1, 2) == [0, 0, 0]
    assert summaries(job) == []


def test_a_job_goes_on_without_its_store(gang: Callable[[str], Gang]) -> None:
    job = gang("on")
    job.reach_step_three()
    job.store = None
    job.sign.touch()
    assert job.ended(0, 1, 2) == [0, 0, 0]
    assert summaries(job) == []


def test_a_hang_ends_without_the_store(gang: Callable[[str], Gang]) -> None:
    job = gang("sleep")
    job.reach_step_three()
    job.store = None
    assert job.ended(0, 1, 2) == [EXIT_HUNG] * 3
    told = summaries(job)
    assert len(told) == 3
    assert "in sleeping_forever" in job.said(2)
    assert all("who else hangs is not known, the job's store does not answer" in line for line in told)


def test_ranks_that_wait_for_nobody_are_all_named() -> None:
    beat = Beat(number=1, where="a, local rank 0, CPU", step=3, phase="data", seconds=9.0, flight=None)
    told = summary_of({0: beat, 1: beat}, [0, 1], 2)
    assert told.startswith(
        "hang: no progress, and no rank waits for another: rank 0 (a, local rank 0, CPU), in data of"
    )
    assert "; rank 1 (" in told
