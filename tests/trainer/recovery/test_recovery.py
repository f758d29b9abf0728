"""Ranks that are killed and replaced, against a run without failures."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.polling import eventually
from tests.trainer.conftest import Job
from tests.trainer.recovery.supervised import SupervisedJob, losses
from trainer.recovery.agreement import MAX_RECOVERIES_PER_STEP
from trainyard.models.failure_messages import PEER_LOST

pytestmark = pytest.mark.slow

SETTINGS: dict[str, Any] = {
    "recovery": "in_process",
    "steps": 120,
    "batch_size": 8,
    "checkpoint": {"interval_steps": 20, "memory_interval_steps": 5},
    "evaluation": {"interval_steps": 40, "batches": 2},
}


@pytest.fixture
def configured(job: Callable[..., Job], tmp_path: Path) -> Callable[..., Job]:
    def create(name: str, **changes: Any) -> Job:
        created = job(name, {"TRAINYARD_MEMORY": str(tmp_path / name)})
        created.configure(**SETTINGS, **changes)
        return created

    return create


@pytest.mark.parametrize("context", [1, 2])
def test_killed_ranks_change_no_loss_and_no_other_process(configured: Callable[..., Job], context: int) -> None:
    parallel = {"context": context}
    undisturbed, killed = configured("undisturbed", parallel=parallel), configured("killed", parallel=parallel)
    with SupervisedJob(undisturbed, 4) as run:
        assert run.finish().count("replaces it") == 0
    with SupervisedJob(killed, 4) as run:
        run.wait_for_step(30)
        before = run.ranks()
        run.kill(2)  # some ranks have completed the step, others have not
        run.wait_for_step(run.step() + 30)
        run.kill(0)  # writes the metrics and decides on checkpoints
        eventually(lambda: run.ranks().get(0, before[0]) != before[0], "a replacement of rank 0")
        after = run.ranks()
        output = run.finish()
    assert run.process.returncode == 0, output
    assert (after[1], after[3]) == (before[1], before[3])
    assert output.count("replaces it") == 2
    assert losses(killed) == losses(undisturbed)
    assert len(losses(killed)) == SETTINGS["steps"]
    assert killed.results()["checkpoints"][-1].endswith("step-00000120/")


def test_a_replacement_that_is_lost_before_it_joins_is_replaced(configured: Callable[..., Job]) -> None:
    with SupervisedJob(configured("twice"), 2) as run:
        run.wait_for_step(20)
        step, before = run.step(), run.ranks()
        run.kill(1)
        eventually(lambda: run.ranks().get(1, before[1]) != before[1], "a replacement")
        run.kill(1)
        run.wait_for_step(step + 5)
        assert run.ranks()[0] == before[0]


def test_recoveries_without_progress_end_the_attempt(configured: Callable[..., Job]) -> None:
    """The controller then starts a new attempt: it receives the signal as the cause."""
    with SupervisedJob(configured("without-progress"), 2) as run:
        run.wait_for_step(20)
        store = run.store()
        for generation in range(1, MAX_RECOVERIES_PER_STEP + 1):
            run.kill(1)
            # All ranks have agreed on their generation, and create its process groups.
            eventually(lambda name=f"{generation}/start": store.check([name]), "a generation")  # type: ignore[misc]
        run.kill(1)
        output = run.finish()
    assert run.process.returncode == 1
    assert PEER_LOST in run.rank_log(0, "stderr")
    assert "exitcode  : -9" in output
