"""Micro-batches of a rank: the same samples for any number of ranks and workers, from any position."""

import os
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
from tests.problems import rejects
from tests.trainer.conftest import Job
from tests.trainer.data.conftest import IMAGES, LENGTH, MASKED, MODEL, config, write_images, write_tokens
from trainer.data import open_data
from trainer.data.counter_rng import IntArray
from trainer.data.datasets import image_workers
from trainer.data.loader import PositionDataset, _WorkerBatch, _WorkerDataset
from trainer.data.order import SampleOrder
from trainer.settings import Environment
from trainyard.config.training import TrainerConfig

CreateEnvironment = Callable[..., Environment]


def samples(
    environment: Environment, settings: TrainerConfig, ranks: int, consumed: int, steps: int
) -> list[list[tuple[Any, ...]]]:
    """Return the samples of each step over all ranks, as (tokens, labels), in the order of positions."""
    samples_per_rank = settings.batch_size // ranks
    shares = []
    for rank in range(ranks):
        data = open_data(settings, environment, rank=rank, ranks=ranks)
        batches = data.train_batches(consumed)
        shares.append(
            [
                [sample for (sample,) in zip_rows(batches, samples_per_rank // settings.micro_batch_size)]
                for _ in range(steps)
            ]
        )
        data.close()
    return [[shares[at % ranks][step][at // ranks] for at in range(settings.batch_size)] for step in range(steps)]


def zip_rows(batches: Iterator[tuple[torch.Tensor, ...]], number: int) -> Iterator[tuple[Any, ...]]:
    for batch in islice(batches, number):
        for row in zip(*(part.tolist() for part in batch), strict=True):
            yield ((*map(str, row),),)


def take(environment: Environment, settings: TrainerConfig, number: int, consumed: int = 0) -> list[tuple[Any, ...]]:
    data = open_data(settings, environment, rank=1, ranks=2)
    try:
        return [tuple(part.tolist() for part in batch) for batch in islice(data.train_batches(consumed), number)]
    finally:
        data.close()


@pytest.mark.parametrize("model", [MODEL, MASKED])
def test_step_has_the_same_samples_on_any_number_of_ranks(
    environment_for: CreateEnvironment, tmp_path: Path, model: dict[str, Any]
) -> None:
    write_tokens(tmp_path / "data", mask=3, vocabulary=1000)
    settings = config(model=model)
    expected = samples(environment_for(tmp_path / "data"), settings, 1, 0, 4)
    for ranks in (2, 3, 4, 8):
        assert samples(environment_for(tmp_path / "data"), settings, ranks, 0, 4) == expected


def test_training_resumes_exactly_with_other_ranks_and_another_micro_batch(
    environment_for: CreateEnvironment, tmp_path: Path
) -> None:
    write_tokens(tmp_path / "data")
    straight = samples(environment_for(tmp_path / "data"), config(), 4, 0, 8)
    again = samples(environment_for(tmp_path / "data"), config(micro_batch_size=4), 3, 24 * 5, 3)
    assert again == straight[5:]


def test_epoch_has_each_sample_once(environment_for: CreateEnvironment, tmp_path: Path) -> None:
    write_tokens(tmp_path / "data", (8 * 30 + 1, 8 * 18 + 5, 100))
    settings = config(batch_size=12)
    first, second = (samples(environment_for(tmp_path / "data"), settings, 2, consumed, 4) for consumed in (0, 48))
    starts = [sorted(sample[0] for step in epoch for sample in step) for epoch in (first, second)]
    assert starts[0] == starts[1]
    assert len(set(starts[0])) == 48
    assert first != second


def test_workers_do_not_change_the_samples(environment_for: CreateEnvironment, tmp_path: Path) -> None:
    write_tokens(tmp_path / "data", mask=3, vocabulary=1000)
    in_process, in_workers = (
        take(environment_for(tmp_path / "data"), config(model=MASKED, data={"workers": workers}), 30, 24)
        for workers in (0, 2)
    )
    assert in_workers == in_process


def test_workers_ignore_termination_signals_of_other_processes(
    environment_for: CreateEnvironment, tmp_path: Path
) -> None:
    """Signals to a process group reach workers too, but training must save a checkpoint. Training stops them."""
    write_tokens(tmp_path / "data")
    data = open_data(config(data={"workers": 2}), environment_for(tmp_path / "data"), rank=0, ranks=1)
    training = data.train_batches(0)
    next(training)
    workers = [child for child in psutil.Process().children(recursive=True) if child.name() == "pt_data_worker"]
    pids = {str(process.pid) for worker in workers for process in (worker, worker.parent()) if process}
    for number in ("TERM", "INT"):
        subprocess.run(["kill", f"-{number}", *pids], check=True)
    assert len(list(islice(training, 20))) == 20
    for worker in workers:
        worker.terminate()
    eventually(lambda: not any(worker.is_running() for worker in workers), "the exit of the workers")
    data.close()


def test_workers_exit_when_the_job_is_killed(job: Callable[..., Job]) -> None:
    run = job("killed")
    run.configure(steps=10**6, checkpoint={"interval_steps": 10**6}, data={"workers": 2})
    process = subprocess.Popen(run.command(1), env=run.environment, stdout=subprocess.DEVNULL)
    started: list[psutil.Process] = []
    try:
        lines = run.folder / "metrics/metrics.jsonl"
        eventually(lambda: lines.exists() and lines.read_text().count("\n") > 2, "the steps")
        started = psutil.Process(process.pid).children(recursive=True)
        assert [child.name() for child in started].count("pt_data_worker") >= 2
        process.kill()
        eventually(lambda: not any(child.is_running() for child in started), "the exit of all child processes", 20)
    finally:
        for child in started:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        process.kill()
        process.wait()


def test_close_stops_all_threads_and_processes(environment_for: CreateEnvironment, tmp_path: Path) -> None:
    write_tokens(tmp_path / "data")
    before = set(threading.enumerate())
    data = open_data(config(data={"workers": 2}), environment_for(tmp_path / "data"), rank=0, ranks=1)
    training = data.train_batches(0)
    next(training)
    first, again = ([batch[0].tolist() for batch in data.held_out_batches(2)] for _ in range(2))
    assert first == again
    assert len(first) == 2
    workers = [child for child in psutil.Process().children(recursive=True) if child.name() == "pt_data_worker"]
    assert len(workers) == 4
    data.close()
    eventually(lambda: not any(worker.is_running() for worker in workers), "the exit of the workers")
    eventually(lambda: set(threading.enumerate()) <= before, "the exit of the threads")


def test_held_out_samples_are_the_same_each_time_and_never_trained_on(
    environment_for: CreateEnvironment, tmp_path: Path
) -> None:
    write_tokens(tmp_path / "data")
    data = open_data(config(), environment_for(tmp_path / "data"), rank=0, ranks=1)
    first, second = ([batch[0].tolist() for batch in data.held_out_batches(2)] for _ in range(2))
    assert first == second
    assert min(min(rows[0]) for rows in first) >= 171 + 90 + 333
    data.close()


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each pinned tensor was contiguous. The fake does not copy the tensor."""
    contiguous: list[bool] = []

    def pin(tensor: torch.Tensor, device: object = None) -> torch.Tensor:
        contiguous.append(tensor.is_contiguous())
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    return contiguous


def test_thread_pins_contiguous_tensors(
    environment_for: CreateEnvironment, tmp_path: Path, pinned: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tokens(tmp_path / "data")
    expected = take(environment_for(tmp_path / "data"), config(), 3)
    assert not pinned
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert take(environment_for(tmp_path / "data"), config(), 3) == expected
    assert pinned
    assert all(pinned)


def test_batches_of_workers_are_pinned_as_contiguous_tensors(pinned: list[bool]) -> None:
    class Halves:
        def read(self, shards: IntArray, indices: IntArray, positions: IntArray) -> tuple[torch.Tensor, ...]:
            return (torch.arange(12).view(2, 6),)

        def batch(self, read: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            return read[0][:, :-1], read[0][:, 1:]

        def complete(self, batch: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            return batch

    dataset = PositionDataset(SampleOrder([8], seed=0, streams=1, block=8), Halves())  # type: ignore[arg-type]
    batch = _WorkerDataset(dataset).__getitems__(range(2))
    assert isinstance(batch, _WorkerBatch)
    pinned_batch = pin_memory(batch)  # type: ignore[no-untyped-call]  # the function that DataLoader's thread calls
    assert pinned == [True, True]
    assert [part.tolist() for part in pinned_batch.batch] == [part.tolist() for part in batch.batch]


def test_loader_does_not_use_the_global_generator(environment_for: CreateEnvironment, tmp_path: Path) -> None:
    write_images(tmp_path / "data")
    before = torch.get_rng_state()
    for workers in (0, 2):
        take(environment_for(tmp_path / "data"), config(model=IMAGES, data={"workers": workers}), 3)
    assert torch.equal(torch.get_rng_state(), before)


def test_windows_cover_shards_up_to_their_edges(environment_for: CreateEnvironment, tmp_path: Path) -> None:
    write_tokens(tmp_path / "data", (17, 9, 8, 40), dtype="uint32")
    rows = {
        sample[0]
        for step in samples(environment_for(tmp_path / "data"), config(batch_size=3), 1, 0, 1)
        for sample in step
    }
    assert rows == {str(list(range(start, start + LENGTH))) for start in (0, 8, 17)}


@pytest.mark.parametrize(
    ("changes", "code", "values"),
    [
        ({"model": MODEL | {"sequence_length": 500}}, "dataset_too_small", ("501 tokens", "train")),
        ({"model": MODEL | {"sequence_length": 100}}, "dataset_too_small", ("101 tokens", "hold out")),
        ({"model": MASKED}, "mask_token_missing", ()),
        ({"model": IMAGES}, "dataset_of_another_kind", ("tokens", "images")),
    ],
)
def test_dataset_that_does_not_fit_the_model_is_rejected(
    environment_for: CreateEnvironment, tmp_path: Path, changes: dict[str, Any], code: str, values: tuple[str, ...]
) -> None:
    write_tokens(tmp_path / "data")
    with rejects(code, *values):
        open_data(config(**changes), environment_for(tmp_path / "data"), rank=0, ranks=1)


def test_images_for_a_text_model_are_rejected(environment_for: CreateEnvironment, tmp_path: Path) -> None:
    write_images(tmp_path / "data")
    with rejects("dataset_of_another_kind", "images", "tokens"):
        open_data(config(), environment_for(tmp_path / "data"), rank=0, ranks=1)


@pytest.mark.parametrize(
    ("write", "model", "size", "value"),
    [
        (write_tokens, MODEL, 614, "614 token ids"),
        (write_images, IMAGES, 3, "3 classes"),
    ],
)
def test_dataset_with_too_large_a_vocabulary_is_rejected(
    environment_for: CreateEnvironment, tmp_path: Path, write: Any, model: dict[str, Any], size: int, value: str
) -> None:
    write(tmp_path / "data")
    settings = config(model=model)
    data = open_data(settings, environment_for(tmp_path / "data"), rank=0, ranks=1)
    try:
        data.require_vocabulary_fits(size, settings.model)
        with rejects("vocabulary_too_large", value):
            data.require_vocabulary_fits(size - 1, settings.model)
    finally:
        data.close()


@pytest.mark.parametrize(("cores", "ranks", "workers"), [(192, 8, 12), (96, 8, 11), (4, 1, 3), (4, 4, 2)])
def test_images_have_the_workers_of_a_ranks_cores(
    monkeypatch: pytest.MonkeyPatch, cores: int, ranks: int, workers: int
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    assert image_workers(ranks) == workers
