"""Opens the dataset of a job for one of the ranks that share its batch."""

import json
import math
import os
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import torch

from trainer.data.cache import Cache
from trainer.data.disk_space import GIB
from trainer.data.index import read_index, require_cache_fits, require_matching_model, require_vocabulary_fits
from trainer.data.loader import Batches, Loader
from trainer.data.order import SampleOrder, positions_of_rank, streams_of_ranks
from trainer.data.prefetch import Prefetcher
from trainer.data.tokens import Masking, TokenSamples
from trainer.settings import Environment
from trainyard.config.training import TrainerConfig
from trainyard.config.training.models import ImageModelConfig, ModelConfig
from trainyard.models.dataset import Dataset, ImageDataset, Shard, TokenDataset

if TYPE_CHECKING:
    from trainer.data.images import ImageSamples

MAX_IMAGE_WORKERS = 12  # of a rank
HELD_OUT_IMAGE_WORKERS = 2
_PREFETCH_SHARE = 0.8  # of a node's cache; the rest is for shards in use and for other jobs


def open_data(config: TrainerConfig, environment: Environment, *, rank: int, ranks: int) -> "Data":
    """Open the dataset for `rank`, one of the `ranks` that share the batch. `ranks` divides config.batch_size.

    Raises InputError if there is no dataset, or if it does not fit the model or the node, and OSError if the storage
    can't be reached.
    """
    limit = None if config.data.cache_gib is None else config.data.cache_gib * GIB
    cache = Cache(environment.data_uri, "DATA_URI", environment.cache_dir, limit)
    cache.storage.require()
    index = read_index(cache.storage)
    require_matching_model(index, config, cache.storage)
    return Data(config, environment, cache, index, rank, ranks)


class DataError(Exception):
    """A shard is unavailable or differs from the index. The message is for the dataset's creator."""


class Data:
    """Micro-batches of one rank, in CPU memory, which is pinned if there is a GPU.

    causal: tokens and their targets, int64 (samples, length) each; masked: inputs and labels of the same form; both
    followed by `cu_seqlens` (trainer/models/documents.py) if a sequence has several documents;
    images: pixels uint8 (samples, 3, size, size), and labels int64 (samples,).
    """

    def __init__(
        self, config: TrainerConfig, environment: Environment, cache: Cache, index: Dataset, rank: int, ranks: int
    ) -> None:
        """Use `open_data`, which checks its arguments."""
        self.index = index
        self.storage = cache.storage
        self._batch = config.micro_batch_size * ranks  # samples of one micro-batch on all ranks
        self._iterators: list[Batches] = []
        splits = []
        for shards, augment in ((index.train, True), (index.validation, False)):
            samples = _create_samples(index, shards, cache, config, augment=augment)
            order = SampleOrder(
                samples.counts, seed=config.seed, streams=config.data.streams, block=config.shuffle_block_samples
            )
            workers = config.data.workers
            if workers is None and isinstance(samples, TokenSamples):
                workers = 0
            elif workers is None:
                workers = image_workers(environment.local_world_size) if augment else HELD_OUT_IMAGE_WORKERS
            batches = {"rank": rank, "ranks": ranks, "micro_batch": config.micro_batch_size}
            loader = Loader(samples, order, **batches, prefetch=config.data.prefetch, workers=workers)
            splits.append((order, loader))
        (order, self._train), (held_out_order, self._held_out) = splits
        self._order, self._seed = order, config.seed
        # Whether micro-batches have `cu_seqlens` if a sequence has several documents.
        self.separates_documents = isinstance(samples, TokenSamples) and samples.separates_documents
        self.held_out_samples = held_out_order.size
        local_ranks = _local_ranks(config, environment, rank, ranks)
        limit = math.inf
        if not cache.reads_in_place:
            limit = cache.disk_space.limit_bytes
            streams = len(streams_of_ranks(local_ranks, ranks, order.streams))
            require_cache_fits(index, config, order.size, streams, limit)
        evaluated = min(config.batch_size // ranks * config.evaluation.batches, held_out_order.size)
        positions = positions_of_rank(0, rank, ranks, evaluated, 0)
        held_out = {int(number): index.validation[number] for number in held_out_order.locate(positions)[0]}
        self._prefetcher = Prefetcher(
            cache,
            order,
            index.train,
            rank=rank,
            ranks=ranks,
            streams=streams_of_ranks([rank], ranks, order.streams),
            budget=_PREFETCH_SHARE * limit / len(local_ranks),
            additional=tuple(held_out.values()),
        )

    def train_batches(self, consumed: int) -> Batches:
        """Yield this rank's micro-batches from the sample `consumed` on, endless. Closes earlier iterators.

        `consumed` is a multiple of the batch size. Raises DataError if a shard is unavailable for a minute or differs
        from the index.
        """
        self._close_iterators()
        self._prefetcher.update_position(consumed)
        batches = self._train.batches(consumed)
        self._iterators.append(batches)
        return self._tracked(batches, consumed)

    def held_out_batches(self, number: int) -> Batches:
        """Yield `number` micro-batches of this rank with held-out samples, the same in each call.

        Raises DataError as `train_batches` does.
        """
        return _with_data_errors(self._held_out.batches(0, number))

    @property
    def order(self) -> dict[str, Any]:
        """Settings that determine the sample at each position, as JSON values by the user's keys.

        The dataset is identified by its content, not by its URI.
        """
        digest = sha256(json.dumps([(shard.count, shard.sha256) for shard in self.index.train]).encode())
        return {
            "DATA_URI": f"sha256:{digest.hexdigest()[:16]}",
            "config.seed": self._seed,
            "config.data.streams": self._order.streams,
            "config.data.shuffle_block_samples": self._order.block,
        }

    @property
    def has_conversations(self) -> bool:
        """Whether the samples are rows of conversations, whose responses are the targets."""
        return isinstance(self.index, TokenDataset) and self.index.row_tokens is not None

    @property
    def special_tokens(self) -> dict[str, int | None]:
        """Token ids by their keys in config.json of transformers; empty for images."""
        if not isinstance(self.index, TokenDataset):
            return {}
        return self.index.special_tokens

    def require_vocabulary_fits(self, limit: int, model: ModelConfig) -> None:
        """Raise InputError if the dataset has more than `limit` token ids or classes, the number of the model."""
        require_vocabulary_fits(self.index, limit, model, self.storage)

    def close(self) -> None:
        """Stop threads and processes."""
        self._prefetcher.close()
        self._close_iterators()
        self._train.close()
        self._held_out.close()

    def _tracked(self, batches: Batches, consumed: int) -> Batches:
        for batch in _with_data_errors(batches):
            consumed += self._batch
            self._prefetcher.update_position(consumed)
            yield batch

    def _close_iterators(self) -> None:
        while self._iterators:
            self._iterators.pop().close()


def _with_data_errors(batches: Batches) -> Batches:
    try:
        yield from batches
    except OSError as error:
        raise DataError(str(error)) from error


def _create_samples(
    index: Dataset, shards: Sequence[Shard], cache: Cache, config: TrainerConfig, *, augment: bool
) -> "TokenSamples | ImageSamples":
    model = config.model
    if isinstance(index, ImageDataset):
        assert isinstance(model, ImageModelConfig)
        from trainer.data.images import ImageSamples  # imports torchvision, which text does not need

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
    separates = config.data.separate_documents
    return TokenSamples(index, shards, cache, model.sequence_length, masking, separates_documents=separates)


def image_workers(local_world_size: int) -> int:
    """Return the number of workers of a rank that decode images: the cores of a rank, or two without GPU.

    A core decodes some hundred images per second, and an H100 trains ResNet-50 with some 3,000.
    """
    if not torch.cuda.is_available():
        return 2
    cores = min(len(os.sched_getaffinity(0)), (os.cpu_count() or 1) // local_world_size)
    return min(MAX_IMAGE_WORKERS, max(2, cores - 1))  # the training thread needs one, too


def _local_ranks(config: TrainerConfig, environment: Environment, rank: int, ranks: int) -> list[int]:
    """Return the ranks of this node among those that share the batch. They are consecutive, as in parallel.Layout."""
    number = min(ranks, max(1, environment.local_world_size // (config.parallel.tensor * config.parallel.context)))
    first = rank // number * number
    return list(range(first, min(ranks, first + number)))
