"""Micro-batches of a rank: exact on any number of ranks and workers, from any position."""

import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch.utils.data._utils.pin_memory import pin_memory

from tests.polling import eventually
from tests.trainer.conftest import Job
from tests.trainer.data.conftest import LENGTH, MASKED, MODEL, PICTURES, config, write_images, write_tokens
from trainer.data import open_data
from trainer.data.draws import Counts
from trainer.data.loader import ByPosition, _InWorker, _Made
from trainer.data.order import Order
from trainer.settings import Environment
from trainyard.base import InputError
from trainyard.config.training import TrainerConfig

At = Callable[..., Environment]


def samples(
    environment: Environment, given: TrainerConfig, ranks: int, consumed: int, steps: int
) -> list[list[tuple[Any, ...]]]:
    """Each step's samples over all ranks, as (tokens, labels), in the order of positions."""
    own = given.batch_size // ranks
    shares = []
    for rank in range(ranks):
        data = open_data(given, environment, rank=rank, ranks=ranks)
        batches = data.train(consumed)
        shares.append([[one for (one,) in zip_rows(batches, own // given.micro_batch_size)] for _ in range(steps)])
        data.close()
    return [[shares[at % ranks][step][at // ranks] for at in range(given.batch_size)] for step in range(steps)]


def zip_rows(batches: Iterator[tuple[torch.Tensor, ...]], number: int) -> Iterator[tuple[Any, ...]]:
    for batch in islice(batches, number):
        for row in zip(*(part.tolist() for part in batch), strict=True):
            yield ((*map(str, row),),)


def take(environment: Environment, given: TrainerConfig, number: int, consumed: int = 0) -> list[tuple[Any, ...]]:
    data = open_data(given, environment, rank=1, ranks=2)
    try:
        return [tuple(part.tolist() for part in batch) for batch in islice(data.train(consumed), number)]
    finally:
        data.close()


@pytest.mark.parametrize("model", [MODEL, MASKED])
def test_a_step_has_the_same_samples_on_any_number_of_ranks(at: At, tmp_path: Path, model: dict[str, Any]) -> None:
    write_tokens(tmp_path / "data", mask=3, vocabulary=1000)
    given = config(model=model)
    expected = samples(at(tmp_path / "data"), given, 1, 0, 4)
    for ranks in (2, 3, 4, 8):
        assert samples(at(tmp_path / "data"), given, ranks, 0, 4) == expected


def test_training_goes_on_exactly_with_other_ranks_and_another_micro_batch(at: At, tmp_path: Path) -> None:
    write_tokens(tmp_path / "data")
    straight = samples(at(tmp_path / "data"), config(), 4, 0, 8)
    again = samples(at(tmp_path / "data"), config(micro_batch_size=4), 3, 24 * 5, 3)
    assert again == straight[5:]


def test_an_epoch_holds_each_sample_once(at: At, tmp_path: Path) -> None:
    write_tokens(tmp_path / "data", (8 * 30 + 1, 8 * 18 + 5, 100))
    given = config(batch_size=12)
    first, second = (samples(at(tmp_path / "data"), given, 2, consumed, 4) for consumed in (0, 48))
    starts = [sorted(sample[0] for step in epoch for sample in step) for epoch in (first, second)]
    assert starts[0] == starts[1]
    assert len(set(starts[0])) == 48
    assert first != second


def test_workers_change_nothing(at: At, tmp_path: Path) -> None:
    write_tokens(tmp_path / "data", mask=3, vocabulary=1000)
    alone, helped = (
        take(at(tmp_path / "data"), config(model=MASKED, data={"workers": workers}), 30, 24) for workers in (0, 2)
    )
    assert helped == alone


def test_workers_outlive_what_ends_the_job(at: At, tmp_path: Path) -> None:
    """Who tells a process group tells them too, and the training is to save a checkpoint yet; it can end them."""
    write_tokens(tmp_path / "data")
    data = open_data(config(data={"workers": 2}), at(tmp_path / "data"), rank=0, ranks=1)
    training = data.train(0)
    next(training)
    workers = [child for child in psutil.Process().children(recursive=True) if child.name() == "pt_data_worker"]
    everyone = {str(process.pid) for worker in workers for process in (worker, worker.parent()) if process}
    for number in ("TERM", "INT"):
        subprocess.run(["kill", f"-{number}", *everyone], check=True)
    assert len(list(islice(training, 20))) == 20
    for worker in workers:
        worker.terminate()
    eventually(lambda: not any(worker.is_running() for worker in workers), "the end of the workers", 10)
    data.close()


def test_workers_end_with_a_job_that_is_killed(job: Callable[..., Job]) -> None:
    run = job("killed")
    run.configure(steps=10**6, checkpoint={"every": 10**6}, data={"workers": 2})
    process = subprocess.Popen(run.command(1), env=run.environment, stdout=subprocess.DEVNULL)
    started: list[psutil.Process] = []
    try:
        lines = run.folder / "metrics/metrics.jsonl"
        eventually(lambda: lines.exists() and lines.read_text().count("\n") > 2, "the steps")
        started = psutil.Process(process.pid).children(recursive=True)
        assert [each.name() for each in started].count("pt_data_worker") >= 2
        process.kill()
        eventually(lambda: not any(each.is_running() for each in started), "the end of all that it had started", 20)
    finally:
        for each in started:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        process.kill()
        process.wait()


def test_nothing_is_left_after_closing(at: At, tmp_path: Path) -> None:
    write_tokens(tmp_path / "data")
    before = set(threading.enumerate())
    data = open_data(config(data={"workers": 2}), at(tmp_path / "data"), rank=0, ranks=1)
    training = data.train(0)
    next(training)
    first, again = ([batch[0].tolist() for batch in data.held_out(2)] for _ in range(2))
    assert first == again
    assert len(first) == 2
    workers = [child for child in psutil.Process().children(recursive=True) if child.name() == "pt_data_worker"]
    assert len(workers) == 4
    data.close()
    eventually(lambda: not any(worker.is_running() for worker in workers), "the end of the workers")
    eventually(lambda: set(threading.enumerate()) <= before, "the end of the threads")


def test_held_out_samples_are_the_same_each_time_and_never_trained_on(at: At, tmp_path: Path) -> None:
    write_tokens(tmp_path / "data")
    data = open_data(config(), at(tmp_path / "data"), rank=0, ranks=1)
    first, second = ([batch[0].tolist() for batch in data.held_out(2)] for _ in range(2))
    assert first == second
    assert min(min(rows[0]) for rows in first) >= 171 + 90 + 333
    data.close()


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each tensor that was pinned had no gaps; it stays where it is."""
    found: list[bool] = []

    def pin(tensor: torch.Tensor, device: object = None) -> torch.Tensor:
        found.append(tensor.is_contiguous())
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    return found


def test_what_the_thread_pins_has_no_gaps(
    at: At, tmp_path: Path, pinned: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tokens(tmp_path / "data")
    expected = take(at(tmp_path / "data"), config(), 3)
    assert not pinned
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert take(at(tmp_path / "data"), config(), 3) == expected
    assert pinned
    assert all(pinned)


def test_what_is_pinned_of_workers_has_no_gaps(pinned: list[bool]) -> None:
    class Halves:
        def read(self, shards: Counts, indices: Counts, positions: Counts) -> tuple[torch.Tensor, ...]:
            return (torch.arange(12).view(2, 6),)

        def batch(self, read: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            return read[0][:, :-1], read[0][:, 1:]

    dataset = ByPosition(Order([8], seed=0, streams=1, block=8), Halves())  # type: ignore[arg-type]
    made = _InWorker(dataset).__getitems__(range(2))
    assert isinstance(made, _Made)
    moved = pin_memory(made)  # type: ignore[no-untyped-call]  # what DataLoader's own thread calls
    assert pinned == [True, True]
    assert [part.tolist() for part in moved.batch] == [part.tolist() for part in made.batch]


def test_the_generator_of_the_model_is_left_alone(at: At, tmp_path: Path) -> None:
    write_images(tmp_path / "data")
    before = torch.get_rng_state()
    for workers in (0, 2):
        take(at(tmp_path / "data"), config(model=PICTURES, data={"workers": workers}), 3)
    assert torch.equal(torch.get_rng_state(), before)


def test_windows_meet_the_shards_edges(at: At, tmp_path: Path) -> None:
    write_tokens(tmp_path / "data", (17, 9, 8, 40), dtype="uint32")
    rows = {sample[0] for step in samples(at(tmp_path / "data"), config(batch_size=3), 1, 0, 1) for sample in step}
    assert rows == {str(list(range(start, start + LENGTH))) for start in (0, 8, 17)}


@pytest.mark.parametrize(
    ("index", "changes", "why"),
    [
        ({}, {"model": MODEL | {"sequence_length": 500}}, "has no sample of 501 tokens to train on"),
        ({}, {"model": MODEL | {"sequence_length": 100}}, "has no sample of 101 tokens to hold out"),
        ({}, {"model": MASKED}, "has no mask token"),
        ({}, {"model": PICTURES}, "is a dataset of tokens, and the model learns from images"),
    ],
)
def test_a_dataset_that_does_not_fit_the_model_is_refused(
    at: At, tmp_path: Path, index: dict[str, Any], changes: dict[str, Any], why: str
) -> None:
    write_tokens(tmp_path / "data", **index)
    with pytest.raises(InputError, match=why):
        open_data(config(**changes), at(tmp_path / "data"), rank=0, ranks=1)


def test_images_for_a_model_of_text_are_refused(at: At, tmp_path: Path) -> None:
    write_images(tmp_path / "data")
    with pytest.raises(InputError, match="is a dataset of images, and the model learns from tokens"):
        open_data(config(), at(tmp_path / "data"), rank=0, ranks=1)


@pytest.mark.parametrize(
    ("write", "model", "has", "words"),
    [
        (write_tokens, MODEL, 614, "614 token ids, and the model only"),
        (write_images, PICTURES, 3, "3 classes, and the"),
    ],
)
def test_what_the_model_does_not_know_is_refused(
    at: At, tmp_path: Path, write: Any, model: dict[str, Any], has: int, words: str
) -> None:
    write(tmp_path / "data")
    data = open_data(config(model=model), at(tmp_path / "data"), rank=0, ranks=1)
    try:
        data.require_known(has)
        with pytest.raises(InputError, match=words):
            data.require_known(has - 1)
    finally:
        data.close()
