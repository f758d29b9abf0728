"""The dataset of a job, opened for one of the ranks that share its batch."""

import json
import math
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import torch

from trainer.data.ahead import Ahead
from trainer.data.cache import Cache
from trainer.data.index import read_index, require_fit, require_known, require_room
from trainer.data.loader import Batches, Loader, WorkerLoader
from trainer.data.order import Order, of_rank, streams_of
from trainer.data.space import GIB
from trainer.data.tokens import Masking, TokenSamples
from trainer.settings import Environment
from trainyard.config.training import TrainerConfig
from trainyard.config.training.models import ImageModelConfig
from trainyard.models.dataset import Dataset, ImageDataset, Shard

if TYPE_CHECKING:
    from trainer.data.images import ImageSamples

_OF_LIMIT = 0.8  # of a node's cache is for what is fetched ahead; the rest is in use, or of other jobs


def open_data(config: TrainerConfig, environment: Environment, *, rank: int, ranks: int) -> "Data":
    """`rank` is one of the `ranks` that share the batch, which divide config.batch_size.

    Raises InputError where there is no dataset or none that fits the model and the node, and OSError where it can't
    be reached.
    """
    limit = None if config.data.cache_gib is None else config.data.cache_gib * GIB
    cache = Cache(environment.data_uri, "DATA_URI", environment.cache_dir, limit)
    cache.storage.require()
    index = read_index(cache.storage)
    require_fit(index, config, cache.storage)
    return Data(config, environment, cache, index, rank, ranks)


class DataError(Exception):
    """A shard that can't be had, or is not what the index says, in words for whoever made the dataset."""


class Data:
    """Micro-batches of one rank, on the CPU, in pinned memory where there is a GPU.

    causal: tokens and their successors, int64 (samples, length) each; masked: inputs and labels alike; images: pixels
    float32 (samples, 3, size, size), normalised, and labels int64 (samples,).
    """

    def __init__(
        self, config: TrainerConfig, environment: Environment, cache: Cache, index: Dataset, rank: int, ranks: int
    ) -> None:
        """By `open_data`."""
        self.index = index
        self._storage = cache.storage
        self._batch = config.micro_batch_size * ranks  # samples of one micro-batch of all ranks
        self._iterators: list[Batches] = []
        parts = []
        for shards, augment in ((index.train, True), (index.validation, False)):
            samples = _samples(index, shards, cache, config, augment=augment)
            order = Order(samples.counts, seed=config.seed, streams=config.data.streams, block=config.shuffle_block)
            parts.append((order, _loader(samples, order, config, rank, ranks)))
        (order, self._train), (held_out_order, self._held_out) = parts
        self._order, self._seed = order, config.seed
        evaluated = min(config.batch_size // ranks * config.evaluation.batches, held_out_order.size)
        near = of_rank(0, rank, ranks, evaluated, 0)
        held_out = {int(number): index.validation[number] for number in held_out_order.locate(near)[0]}
        here = _ranks_here(config, environment, rank, ranks)
        limit = math.inf
        if not cache.in_place:
            limit = cache.space.limit
            require_room(index, config, order.size, len(streams_of(here, ranks, order.streams)), limit)
        self._ahead = Ahead(
            cache,
            order,
            index.train,
            rank=rank,
            ranks=ranks,
            streams=streams_of([rank], ranks, order.streams),
            budget=_OF_LIMIT * limit / len(here),
            besides=tuple(held_out.values()),
        )

    def train(self, consumed: int) -> Batches:
        """This rank's micro-batches from the sample `consumed` on, without end. Those of an earlier call end.

        `consumed` is a multiple of the batch. Raises DataError where a shard can't be had for a minute, or is not what
        the index says.
        """
        self._end()
        self._ahead.moved(consumed)
        batches = self._train.batches(consumed)
        self._iterators.append(batches)
        return self._watched(batches, consumed)

    def held_out(self, batches: int) -> Batches:
        """So many micro-batches of this rank, of samples that are not trained on; the same each time. Raises DataError
        as `train` does."""
        return _told(self._held_out.batches(0, batches))

    @property
    def order(self) -> dict[str, Any]:
        """What the sample at each position depends on, as JSON has it, by the keys that a user gives. A dataset is
        known by its content, wherever it lies."""
        digest = sha256(json.dumps([(shard.count, shard.sha256) for shard in self.index.train]).encode())
        return {
            "DATA_URI": f"sha256:{digest.hexdigest()[:16]}",
            "config.seed": self._seed,
            "config.data.streams": self._order.streams,
            "config.data.shuffle_block": self._order.block,
        }

    def require_known(self, vocabulary: int) -> None:
        """Raises InputError unless a model that knows so many token ids, or classes, knows all of the dataset's."""
        require_known(self.index, vocabulary, self._storage)

    def close(self) -> None:
        """End threads and processes."""
        self._ahead.close()
        self._end()
        self._train.close()
        self._held_out.close()

    def _watched(self, batches: Batches, consumed: int) -> Batches:
        for batch in _told(batches):
            consumed += self._batch
            self._ahead.moved(consumed)
            yield batch

    def _end(self) -> None:
        while self._iterators:
            self._iterators.pop().close()


def _told(batches: Batches) -> Batches:
    try:
        yield from batches
    except OSError as error:
        raise DataError(str(error)) from error


def _samples(
    index: Dataset, shards: Sequence[Shard], cache: Cache, config: TrainerConfig, *, augment: bool
) -> "TokenSamples | ImageSamples":
    model = config.model
    if isinstance(index, ImageDataset):
        assert isinstance(model, ImageModelConfig)
        from trainer.data.images import ImageSamples  # torchvision, which text does without

        return ImageSamples(index, shards, cache, model.image_size, augment=augment, seed=config.seed)
    assert not isinstance(model, ImageModelConfig)
    masking = None
    if model.task == "masked":
        assert index.mask is not None
        masking = Masking(
            seed=config.seed,
            probability=config.data.mask_probability,
            mask=index.mask,
            vocabulary=index.vocabulary,
            end=index.end,
        )
    return TokenSamples(index, shards, cache, model.sequence_length, masking)


def _loader(
    samples: "TokenSamples | ImageSamples", order: Order, config: TrainerConfig, rank: int, ranks: int
) -> Loader:
    given = {"rank": rank, "ranks": ranks, "micro_batch": config.micro_batch_size, "prefetch": config.data.prefetch}
    if not isinstance(samples, TokenSamples) and config.data.images == "dali":
        from trainer.data.dali import DaliLoader

        return DaliLoader(samples, order, **given)
    workers = config.data.workers
    if workers is None:
        workers = 0 if isinstance(samples, TokenSamples) else 4 if torch.cuda.is_available() else 2
    return WorkerLoader(samples, order, **given, workers=workers)


def _ranks_here(config: TrainerConfig, environment: Environment, rank: int, ranks: int) -> list[int]:
    """Those of this node that share the batch, as parallel.Layout places them: side by side."""
    number = min(ranks, max(1, environment.local_world_size // config.parallel.tensor))
    first = rank // number * number
    return list(range(first, min(ranks, first + number)))
