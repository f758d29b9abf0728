"""Micro-batches of one rank, prepared in advance by a thread or by worker processes.

    data = open_data(config, environment, rank=0, ranks=1)
    for micro_batch in data.train_batches(consumed): ...

`consumed`, the number of samples that all ranks have been trained on, is the complete position. Training may resume
from it with other numbers of ranks and workers: the samples of a step are the same.
"""

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from multiprocessing import forkserver, resource_tracker
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from trainer.data.counter_rng import IntArray
from trainer.data.order import SampleOrder, positions_of_rank
from trainer.data.thread import prefetch_in_thread
from trainer.job_requests import TERMINATION_SIGNALS

Batch = tuple[Tensor, ...]
Read = tuple[Any, ...]  # tensors or arrays; the first dimension counts samples
Batches = Generator[Batch, None, None]
_PARENT_POLL_SECONDS = 1.0
_LOCATED_POSITIONS = 4096  # positions of a rank that are located in one call: it costs little more than one position


class Samples(Protocol):
    """Samples of one kind."""

    @property
    def counts(self) -> list[int]:
        """Number of samples in each shard."""

    @property
    def samples_per_read(self) -> int:
        """Number of samples that is efficient to read in one call, without worker processes."""

    @property
    def is_cheap(self) -> bool:
        """Whether preparing a sample costs little more than copying it."""

    def read(self, shards: IntArray, indices: IntArray, positions: IntArray) -> Read:
        """Read and prepare samples: the expensive part."""

    def batch(self, read: Read) -> Batch:
        """Convert the result of `read`, or a slice of its samples, to tensors whose first dimension counts samples."""

    def complete(self, batch: Batch) -> Batch:
        """Return the tensors to train on of a micro-batch from `batch`, also those that count no samples."""

    def close(self) -> None:
        """Release files."""


class _SampleLocator:
    """Locates the samples of ascending positions, many in one call."""

    def __init__(self, order: SampleOrder) -> None:
        self._order = order
        self._located = range(0)
        self._shards = self._indices = order.locate(range(0))[0]

    def __call__(self, positions: range) -> tuple[IntArray, IntArray]:
        located = self._located
        if positions.step != located.step or positions[0] not in located or positions[-1] not in located:
            # At most one epoch of a small dataset, because each epoch has its own tables.
            number = max(len(positions), min(_LOCATED_POSITIONS, self._order.size // positions.step))
            self._located = range(positions.start, positions.start + number * positions.step, positions.step)
            self._shards, self._indices = self._order.locate(self._located)
        first = self._located.index(positions[0])
        part = slice(first, first + len(positions))
        return self._shards[part], self._indices[part]


class PositionDataset(TorchDataset[Batch]):
    """A dataset whose keys are the positions of a micro-batch, for DataLoader."""

    def __init__(self, order: SampleOrder, samples: Samples) -> None:
        self.samples = samples
        self._locate = _SampleLocator(order)

    def read(self, positions: range) -> Read:
        """Read and prepare the samples at these positions."""
        shards, indices = self._locate(positions)
        return self.samples.read(shards, indices, np.arange(positions.start, positions.stop, positions.step))

    def __getitems__(self, positions: range) -> Batch:
        return self.samples.batch(self.read(positions))


@dataclass(frozen=True)
class _MicroBatchPositions:
    """The positions of each micro-batch of a rank; endless if `number` is None."""

    consumed: int
    rank: int
    ranks: int
    micro_batch: int
    number: int | None

    def __iter__(self) -> Iterator[range]:
        numbers = count() if self.number is None else range(self.number)
        return (positions_of_rank(self.consumed, self.rank, self.ranks, self.micro_batch, number) for number in numbers)


def _pin(batch: Batch) -> Batch:
    """Copy to pinned memory without gaps.

    A pinned tensor with gaps is copied to a GPU through further memory, and the host waits for that copy.
    """
    return tuple(part.contiguous().pin_memory() for part in batch)


@dataclass(frozen=True)
class _WorkerBatch:
    """A micro-batch from a worker. DataLoader calls its `pin_memory`."""

    batch: Batch

    def pin_memory(self) -> "_WorkerBatch":
        return _WorkerBatch(_pin(self.batch))


@dataclass(frozen=True)
class _WorkerFailure:
    """A worker's error in place of a micro-batch: DataLoader would report it as a traceback."""

    reason: str


class _WorkerDataset(TorchDataset[_WorkerBatch | _WorkerFailure]):
    def __init__(self, dataset: PositionDataset) -> None:
        self._dataset = dataset

    def __getitems__(self, positions: range) -> _WorkerBatch | _WorkerFailure:
        try:
            return _WorkerBatch(self._dataset.samples.complete(self._dataset.__getitems__(positions)))
        except OSError as error:
            return _WorkerFailure(str(error))


@contextmanager
def _termination_signals_blocked() -> Iterator[None]:
    """Start processes that ignore the signals that terminate the job.

    Ctrl-C, `timeout` and systemd send them to whole process groups, but training needs its workers until it has saved a
    checkpoint.
    """
    resource_tracker.ensure_running()  # if it started with the workers, it would unblock the signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, TERMINATION_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _exit_with_training(worker: int) -> None:
    """Exit this worker when the training process exits or sends a termination signal; ignore those of other processes.

    DataLoader's own check watches the worker's parent, the fork server, which runs as long as its workers run.
    """
    training = multiprocessing.parent_process()
    assert training

    def watch() -> None:
        while not multiprocessing.connection.wait([training.sentinel], 0):
            # A thread can wait for the signals because they are blocked.
            received = signal.sigtimedwait(TERMINATION_SIGNALS, _PARENT_POLL_SECONDS)
            if received and received.si_pid == training.pid:
                break
        os._exit(1)

    threading.Thread(target=watch, name="watch-training", daemon=True).start()


def _identity(item: Any) -> Any:
    return item


def _unwrap(item: _WorkerBatch | _WorkerFailure) -> Batch:
    if isinstance(item, _WorkerFailure):
        raise OSError(item.reason)
    return item.batch


class Loader:
    """Micro-batches of one part of a dataset, for one rank.

    It loads with the processes of PyTorch's DataLoader or, with `workers` of 0, with a thread of this process.

    Without a GPU, cheap samples are prepared on request: a thread costs more, because both need Python's lock (GIL).
    """

    def __init__(
        self,
        samples: Samples,
        order: SampleOrder,
        *,
        rank: int,
        ranks: int,
        micro_batch: int,
        workers: int,
        prefetch: int,
    ) -> None:
        """`prefetch`: micro-batches to prepare in advance, per worker."""
        self._samples, self._order = samples, order
        self._rank, self._ranks, self._micro_batch = rank, ranks, micro_batch
        self._workers, self._prefetch = workers, prefetch
        self._pins_memory = torch.cuda.is_available()
        self._reusable: tuple[_MicroBatchPositions, DataLoader[_WorkerBatch | _WorkerFailure]] | None = None

    def batches(self, consumed: int, number: int | None = None) -> Batches:
        """Yield `number` micro-batches from the sample `consumed` on; None: endless.

        Closing the generator stops the processes and threads that it has started. Raises OSError if a shard is
        unavailable.
        """
        positions = _MicroBatchPositions(consumed, self._rank, self._ranks, self._micro_batch, number)
        if self._workers:
            return self._load_in_workers(positions)
        return self._load_in_process(positions)

    def close(self) -> None:
        """Stop the worker processes and release files."""
        self._reusable = None
        self._samples.close()

    def _load_in_process(self, positions: _MicroBatchPositions) -> Batches:
        """Read several small micro-batches in one call, which costs little more than one micro-batch."""
        group_size = max(1, self._samples.samples_per_read // self._micro_batch)
        if positions.number is not None:  # a divisor of the number of micro-batches
            group_size = max(size for size in range(1, group_size + 1) if positions.number % size == 0)
        number = None if positions.number is None else positions.number // group_size
        groups = replace(positions, micro_batch=group_size * self._micro_batch, number=number)
        dataset = PositionDataset(self._order, self._samples)

        def split(group: Read) -> Iterator[Any]:
            return zip(*(part.reshape(group_size, -1, *part.shape[1:]) for part in group), strict=True)

        reads: Generator[Read, None, None] = (dataset.read(group) for group in groups)
        to_batch: Callable[[Read], Batch] = self._samples.batch
        if self._pins_memory:  # the thread pins, too
            reads, to_batch = (_pin(dataset.__getitems__(group)) for group in groups), tuple
        if self._pins_memory or not self._samples.is_cheap:
            # At least two groups: the thread reads the next group while the current group is split.
            groups_in_advance = self._prefetch if group_size == 1 else max(2, self._prefetch // group_size)
            reads = prefetch_in_thread(reads, groups_in_advance)
        with closing(reads):
            for group in reads:
                yield from (self._samples.complete(to_batch(part)) for part in split(group))

    def _load_in_workers(self, positions: _MicroBatchPositions) -> Batches:
        if positions.number is None:
            yield from map(_unwrap, self._data_loader(positions))
            return
        if self._reusable is None or self._reusable[0] != positions:
            self._reusable = positions, self._data_loader(positions)
        yield from map(_unwrap, self._reusable[1])  # its processes remain for the next call

    def _data_loader(self, positions: _MicroBatchPositions) -> DataLoader[_WorkerBatch | _WorkerFailure]:
        context = multiprocessing.get_context("forkserver")
        # The server from which workers are forked imports these once. It has no threads that a fork could break.
        context.set_forkserver_preload([__name__, type(self._samples).__module__])
        with _termination_signals_blocked():
            forkserver.ensure_running()
        return DataLoader(
            _WorkerDataset(PositionDataset(self._order, self._samples)),
            batch_sampler=positions,  # type: ignore[arg-type]  # ranges instead of lists
            num_workers=self._workers,
            prefetch_factor=self._prefetch,
            collate_fn=_identity,
            worker_init_fn=_exit_with_training,
            pin_memory=self._pins_memory,
            multiprocessing_context=context,
            generator=torch.Generator(),  # otherwise it draws from the model's generator
            persistent_workers=True,
        )
