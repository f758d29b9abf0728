"""The dataset's index, read and held against the configuration before anything is trained."""

from pydantic import ValidationError

from trainer.data.space import GIB
from trainer.storage import Storage
from trainyard.base import InputError, Problem, problems_of
from trainyard.config.training import TrainerConfig
from trainyard.config.training.models import ImageModelConfig
from trainyard.models.dataset import DATASET, INDEX, Dataset, ImageDataset, TokenDataset


def read_index(storage: Storage) -> Dataset:
    """Raises InputError where there is no dataset, or none that can be read."""
    content = storage.read(INDEX)
    if content is None:
        fix = "Make the dataset by python -m trainer.prepare, or name its folder"
        raise InputError([problem(storage, f"holds no {INDEX}", fix)])
    try:
        return DATASET.validate_json(content)
    except ValidationError as error:
        raise InputError(problems_of(error, "dataset", storage.uri + INDEX)) from None


def problem(storage: Storage, why: str, fix: str) -> Problem:
    return Problem(key=storage.name, value=storage.uri, why=why, fix=fix)


def require_fit(index: Dataset, config: TrainerConfig, storage: Storage) -> None:
    """Raises InputError unless this model can be trained on this dataset."""
    model = config.model
    wanted = "images" if isinstance(model, ImageModelConfig) else "tokens"
    if index.kind != wanted:
        why = f"is a dataset of {index.kind}, and the model learns from {wanted}"
        raise InputError([problem(storage, why, f"Name a dataset of {wanted}, or another model")])
    if isinstance(model, ImageModelConfig):
        return
    assert isinstance(index, TokenDataset)
    if model.task == "masked" and index.mask is None:
        why = "has no mask token, and the model's task is masked"
        raise InputError([problem(storage, why, "Prepare it with a tokenizer that has one, or train task: causal")])
    for part, shards in (("to train on", index.train), ("to hold out", index.validation)):
        if all(shard.count <= model.sequence_length for shard in shards):
            why = f"has no sample of {model.sequence_length + 1} tokens {part}"
            raise InputError([problem(storage, why, "Shorten model.sequence_length, or take more data")])


def require_known(index: Dataset, known: int, storage: Storage) -> None:
    """Raises InputError where the dataset has more token ids, or classes, than the model knows."""
    if isinstance(index, ImageDataset):
        has, what, key = len(index.classes), "classes", "model.classes"
    else:
        has, what, key = index.vocabulary, "token ids", "model.vocabulary (model.config.vocab_size)"
    if has > known:
        raise InputError([problem(storage, f"has {has} {what}, and the model only {known}", f"Raise {key}")])


def require_room(index: Dataset, config: TrainerConfig, samples: int, streams: int, limit: float) -> None:
    """Raises InputError where what is shuffled at once exceeds a node's cache: each sample would cost a download.

    `samples`: of the whole training part; `streams`: those that this node reads; `limit`: bytes.
    """
    total = sum(shard.bytes for shard in index.train)
    largest = max(shard.bytes for shard in (*index.train, *index.validation))
    in_block = min(config.shuffle_block, samples / config.data.streams) * total / samples
    # A block begins and ends within shards, and one that was left is still open for a while.
    needed = min(total, streams * (in_block + 2 * largest)) + largest
    if needed <= limit:
        return
    why = (
        f"a node shuffles {streams} streams of {config.shuffle_block} samples, whose shards take "
        f"{needed / GIB:.2f} GiB, and its cache may hold {limit / GIB:.2f}"
    )
    fix = "Lower data.shuffle_block or data.streams, take smaller shards, or raise data.cache_gib"
    raise InputError([Problem(key="config.data.shuffle_block", value=config.shuffle_block, why=why, fix=fix)])
