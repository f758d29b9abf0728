"""Micro-batches of one rank, made ready ahead of the training by a thread or by processes.

    data = open_data(config, environment, rank=0, ranks=1)
    for micro_batch in data.train(consumed): ...

`consumed`, the number of samples trained on by all ranks, is all of the position. It may be gone on from with other
ranks and other workers: the samples of a step are the same.
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

from trainer.data.draws import Counts
from trainer.data.order import Order, of_rank
from trainer.data.thread import made_ahead
from trainer.requests import ENDING

Batch = tuple[Tensor, ...]
Read = tuple[Any, ...]  # tensors or arrays, whose first dimension counts samples
Batches = Generator[Batch, None, None]
_FOLLOW_SECONDS = 1.0
_LOCATED = 4096  # positions of a rank whose samples are found at once: many cost hardly more than one


class Samples(Protocol):
    """Samples of one kind."""

    @property
    def counts(self) -> list[int]: ...

    @property
    def together(self) -> int:
        """So many samples are made at once with profit, where no other process makes them."""

    @property
    def quick(self) -> bool:
        """Whether to make a sample is hardly more than to copy it."""

    def read(self, shards: Counts, indices: Counts, positions: Counts) -> Read:
        """All that takes time."""

    def batch(self, read: Read) -> Batch:
        """Of what was read, or of some samples of it: what is trained on."""

    def close(self) -> None: ...


class _Located:
    """The samples of ascending positions, many found at once."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._known = range(0)
        self._shards = self._indices = order.locate(range(0))[0]

    def __call__(self, positions: range) -> tuple[Counts, Counts]:
        if positions.step != self._known.step or positions[0] not in self._known or positions[-1] not in self._known:
            # Of a small dataset no more than an epoch, for each has tables of its own.
            number = max(len(positions), min(_LOCATED, self._order.size // positions.step))
            self._known = range(positions.start, positions.start + number * positions.step, positions.step)
            self._shards, self._indices = self._order.locate(self._known)
        first = self._known.index(positions[0])
        part = slice(first, first + len(positions))
        return self._shards[part], self._indices[part]


class ByPosition(TorchDataset[Batch]):
    """What DataLoader asks for micro-batches by their positions."""

    def __init__(self, order: Order, samples: Samples) -> None:
        self.samples = samples
        self._located = _Located(order)

    def read(self, positions: range) -> Read:
        shards, indices = self._located(positions)
        return self.samples.read(shards, indices, np.arange(positions.start, positions.stop, positions.step))

    def __getitems__(self, positions: range) -> Batch:
        return self.samples.batch(self.read(positions))


@dataclass(frozen=True)
class _Positions:
    """Those of each of a rank's micro-batches; without `number`, there is no end."""

    consumed: int
    rank: int
    ranks: int
    micro_batch: int
    number: int | None

    def __iter__(self) -> Iterator[range]:
        numbers = count() if self.number is None else range(self.number)
        return (of_rank(self.consumed, self.rank, self.ranks, self.micro_batch, number) for number in numbers)


def _pinned(batch: Batch) -> Batch:
    """A tensor with gaps keeps them when it is pinned, and is then copied to a GPU through other memory, for which the
    host waits: here it has none."""
    return tuple(part.contiguous().pin_memory() for part in batch)


@dataclass(frozen=True)
class _Made:
    """What a worker hands over. DataLoader has it pin itself."""

    batch: Batch

    def pin_memory(self) -> "_Made":
        return _Made(_pinned(self.batch))


@dataclass(frozen=True)
class _Failed:
    """What it hands over in place of a micro-batch: DataLoader itself would tell its error as a traceback."""

    why: str


class _InWorker(TorchDataset[_Made | _Failed]):
    def __init__(self, dataset: ByPosition) -> None:
        self._dataset = dataset

    def __getitems__(self, positions: range) -> _Made | _Failed:
        try:
            return _Made(self._dataset.__getitems__(positions))
        except OSError as error:
            return _Failed(str(error))


@contextmanager
def _deaf() -> Iterator[None]:
    """What is started within never hears what ends the job, by which whole process groups are told (Ctrl-C, `timeout`,
    systemd): the training is to save a checkpoint yet, and needs its workers until then."""
    resource_tracker.ensure_running()  # which would lift the mask, were it started with the rest
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _follow(worker: int) -> None:
    """A worker ends with the training, however that ends, or when it tells the worker to, and at nobody else's word.

    DataLoader's own watch is on the worker's parent, the server from which it is forked; and that one lives as long as
    its workers do.
    """
    training = multiprocessing.parent_process()
    assert training

    def follow() -> None:
        while not multiprocessing.connection.wait([training.sentinel], 0):
            told = signal.sigtimedwait(ENDING, _FOLLOW_SECONDS)  # blocked here, so that a thread can wait for them
            if told and told.si_pid == training.pid:
                break
        os._exit(1)

    threading.Thread(target=follow, name="follow", daemon=True).start()


def _as_it_is(made: Any) -> Any:
    return made


def _sound(made: _Made | _Failed) -> Batch:
    if isinstance(made, _Failed):
        raise OSError(made.why)
    return made.batch


class Loader(Protocol):
    """Micro-batches of one part of a dataset, for one rank."""

    def batches(self, consumed: int, number: int | None = None) -> Batches:
        """`number` of them, or without end; what it began ends with it. Raises OSError where a shard can't be had."""

    def close(self) -> None: ...


class WorkerLoader:
    """By processes that PyTorch's DataLoader keeps, or, with none of them, by a thread of this one.

    Without a GPU, quick samples are made as they are asked for: a thread costs more, as both want Python's lock.
    """

    def __init__(
        self, samples: Samples, order: Order, *, rank: int, ranks: int, micro_batch: int, workers: int, prefetch: int
    ) -> None:
        self._samples, self._order = samples, order
        self._rank, self._ranks, self._micro_batch = rank, ranks, micro_batch
        self._workers, self._prefetch = workers, prefetch
        self._pinned = torch.cuda.is_available()
        self._kept: tuple[_Positions, DataLoader[_Made | _Failed]] | None = None

    def batches(self, consumed: int, number: int | None = None) -> Batches:
        positions = _Positions(consumed, self._rank, self._ranks, self._micro_batch, number)
        if self._workers:
            return self._by_workers(positions)
        return self._here(positions)

    def close(self) -> None:
        self._kept = None
        self._samples.close()

    def _here(self, positions: _Positions) -> Batches:
        """Small micro-batches are read and handed over several at once: that costs hardly more than one."""
        several = max(1, self._samples.together // self._micro_batch)
        if positions.number is not None:  # no more than these
            several = max(part for part in range(1, several + 1) if positions.number % part == 0)
        number = None if positions.number is None else positions.number // several
        groups = replace(positions, micro_batch=several * self._micro_batch, number=number)
        dataset = ByPosition(self._order, self._samples)

        def parts(group: Read) -> Iterator[Any]:
            return zip(*(part.reshape(several, -1, *part.shape[1:]) for part in group), strict=True)

        made: Generator[Read, None, None] = (dataset.read(each) for each in groups)
        finish: Callable[[Read], Batch] = self._samples.batch
        if self._pinned:  # which a thread is to do too
            made, finish = (_pinned(dataset.__getitems__(each)) for each in groups), tuple
        if self._pinned or not self._samples.quick:
            # While one of several is taken apart another is made.
            made = made_ahead(made, self._prefetch if several == 1 else max(2, self._prefetch // several))
        with closing(made):
            for group in made:
                yield from map(finish, parts(group))

    def _by_workers(self, positions: _Positions) -> Batches:
        if positions.number is None:
            yield from map(_sound, self._loader(positions))
            return
        if self._kept is None or self._kept[0] != positions:
            self._kept = positions, self._loader(positions)
        yield from map(_sound, self._kept[1])  # its processes stay for the next time

    def _loader(self, positions: _Positions) -> DataLoader[_Made | _Failed]:
        context = multiprocessing.get_context("forkserver")
        # Imported once, by the server from which workers are forked; there no thread runs that a fork could break.
        context.set_forkserver_preload([__name__, type(self._samples).__module__])
        with _deaf():
            forkserver.ensure_running()
        return DataLoader(
            _InWorker(ByPosition(self._order, self._samples)),
            batch_sampler=positions,  # type: ignore[arg-type]  # a range is as good as a list
            num_workers=self._workers,
            prefetch_factor=self._prefetch,
            collate_fn=_as_it_is,
            worker_init_fn=_follow,
            pin_memory=self._pinned,
            multiprocessing_context=context,
            generator=torch.Generator(),  # else it draws from the generator of the model
            persistent_workers=True,
        )
