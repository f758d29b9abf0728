"""Agreement of ranks on a generation and on the source of its state, with threads as ranks."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from tests.polling import eventually
from trainer.recovery.agreement import (
    MAX_RECOVERIES_PER_STEP,
    NO_STATE,
    Agreement,
    RecoveryError,
    abandon,
    join,
    newest_generation,
    start_generation,
    wait_for_newer,
)
from trainyard.models.failure_messages import PEER_LOST


class Ranks:
    """Three ranks that share a store."""

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self.store, self._threads = HashStore(), threads

    def join(self, rank: int, step: int, timeout_seconds: float = 20.0) -> "Future[Agreement]":
        return self._threads.submit(
            join, self.store, rank=rank, world_size=3, step=step, timeout_seconds=timeout_seconds
        )

    def agree(self, *steps: int) -> Agreement:
        """Let all ranks join with these steps, and return what they agree on."""
        results = [future.result() for future in [self.join(rank, step) for rank, step in enumerate(steps)]]
        assert len(set(results)) == 1, results
        return results[0]


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    with ThreadPoolExecutor(3) as threads:
        yield Ranks(threads)


def test_first_generation_has_no_source(ranks: Ranks) -> None:
    assert ranks.agree(NO_STATE, NO_STATE, NO_STATE) == Agreement(0, None, NO_STATE)


def test_source_is_the_first_rank_with_the_newest_step(ranks: Ranks) -> None:
    start_generation(ranks.store)
    assert ranks.agree(NO_STATE, 6, 7) == Agreement(1, 2, 7)
    start_generation(ranks.store)
    assert ranks.agree(9, 9, NO_STATE) == Agreement(2, 0, 9)


def test_ranks_that_wait_join_a_newer_generation(ranks: Ranks) -> None:
    """The replacement of a lost rank may be lost, too, before it has joined."""
    start_generation(ranks.store)
    waiting = [ranks.join(0, 5), ranks.join(1, 5)]
    eventually(lambda: ranks.store.check(["1/step/0", "1/step/1"]), "two ranks that wait")
    start_generation(ranks.store)
    agreement = ranks.join(2, NO_STATE).result()
    assert agreement == Agreement(2, 0, 5)
    assert [future.result() for future in waiting] == [agreement, agreement]


def test_a_rank_that_does_not_join_is_named(ranks: Ranks) -> None:
    waiting = [ranks.join(0, 5, timeout_seconds=0.2), ranks.join(2, 5, timeout_seconds=0.2)]
    for future in waiting:
        with pytest.raises(RecoveryError, match=f"{PEER_LOST}: rank 1 did not join generation 0"):
            future.result()


def test_a_failure_of_another_node_ends_the_wait(ranks: Ranks) -> None:
    waiting = ranks.join(0, 5)
    abandon(ranks.store)
    with pytest.raises(RecoveryError, match="failed on another node"):
        waiting.result()


@pytest.mark.parametrize("step", [NO_STATE, 5])
def test_recoveries_without_progress_are_limited(ranks: Ranks, step: int) -> None:
    ranks.agree(NO_STATE, NO_STATE, NO_STATE)
    for _ in range(MAX_RECOVERIES_PER_STEP):
        start_generation(ranks.store)
        ranks.agree(step, step, NO_STATE)
    start_generation(ranks.store)
    with pytest.raises(RecoveryError, match=f"2 recoveries have not completed step {max(step, 0) + 1}"):
        ranks.agree(step, step, NO_STATE)


def test_recoveries_with_progress_are_not_limited(ranks: Ranks) -> None:
    for step in range(2 * MAX_RECOVERIES_PER_STEP + 1):
        start_generation(ranks.store)
        ranks.agree(step, step, NO_STATE)


def test_wait_for_a_newer_generation(ranks: Ranks) -> None:
    assert not wait_for_newer(ranks.store, newest_generation(ranks.store), 0.0)
    start_generation(ranks.store)
    assert wait_for_newer(ranks.store, 0, 0.0)
