"""Reads the dataset's index, and checks it against the configuration before training."""

from pydantic import ValidationError

from trainer.data.disk_space import GIB
from trainer.storage import Storage
from trainyard.config.training import TrainerConfig
from trainyard.config.training.models import HuggingFaceConfig, ImageModelConfig, LanguageModelConfig, ModelConfig
from trainyard.config.validation_errors import problems_from
from trainyard.errors import InputError, Problem
from trainyard.models.dataset import DATASET, INDEX, Dataset, ImageDataset, TokenDataset


def read_index(storage: Storage) -> Dataset:
    """Read the index. Raises InputError if it does not exist or is invalid."""
    content = storage.read(INDEX)
    if content is None:
        fix = "Create the dataset with python -m trainer.prepare, or name its folder"
        raise InputError([_problem(storage, f"holds no {INDEX}", fix, "dataset_index_missing")])
    try:
        return DATASET.validate_json(content)
    except ValidationError as error:
        raise InputError(problems_from(error, "dataset", storage.uri + INDEX)) from None


def _problem(storage: Storage, reason: str, fix: str, code: str) -> Problem:
    return Problem(storage.name, storage.uri, reason, fix, code)


def require_matching_model(index: Dataset, config: TrainerConfig, storage: Storage) -> None:
    """Raise InputError unless the configured model can be trained on this dataset."""
    model = config.model
    kind = "images" if isinstance(model, ImageModelConfig) else "tokens"
    if index.kind != kind:
        reason = f"is a dataset of {index.kind}, and the model is trained on {kind}"
        raise InputError(
            [_problem(storage, reason, f"Name a dataset of {kind}, or another model", "dataset_of_another_kind")]
        )
    if isinstance(model, ImageModelConfig):
        return
    assert isinstance(index, TokenDataset)
    if model.task == "masked" and index.mask is None:
        reason = "has no mask token, and the model's task is masked"
        fix = "Prepare it with a tokenizer that has a mask token, or train task: causal"
        raise InputError([_problem(storage, reason, fix, "mask_token_missing")])
    if index.row_tokens is not None:
        if index.row_tokens != model.sequence_length + 1:
            length = index.row_tokens - 1
            reason = f"has rows of conversations of {length} tokens, and the model's sequences have another length"
            fix = f"Set model.sequence_length to {length}, or prepare the dataset with another --sequence-length"
            raise InputError([_problem(storage, reason, fix, "row_length_mismatch")])
        if model.task == "masked":
            reason = "is a dataset of conversations, and the model's task is masked"
            raise InputError([_problem(storage, reason, "Train task: causal", "dataset_of_another_task")])
        return
    for purpose, shards in (("to train on", index.train), ("to hold out", index.validation)):
        if all(shard.count <= model.sequence_length for shard in shards):
            reason = f"has no sample of {model.sequence_length + 1} tokens {purpose}"
            raise InputError(
                [_problem(storage, reason, "Shorten model.sequence_length, or use more data", "dataset_too_small")]
            )


def require_vocabulary_fits(index: Dataset, limit: int, model: ModelConfig, storage: Storage) -> None:
    """Raise InputError if the dataset has more than `limit` token ids or classes, the number of the model."""
    if isinstance(index, ImageDataset):
        size, unit, fix = len(index.classes), "classes", "Raise model.classes"
    elif isinstance(model, LanguageModelConfig) and model.path is not None:
        fix = "Prepare the dataset with the tokenizer of the model (--tokenizer)"
        size, unit = index.vocabulary, "token ids"
    else:
        key = "model.config.vocab_size" if isinstance(model, HuggingFaceConfig) else "model.vocabulary"
        size, unit, fix = index.vocabulary, "token ids", f"Raise {key}"
    if size > limit:
        reason = f"has {size} {unit}, and the model only {limit}"
        raise InputError([_problem(storage, reason, fix, "vocabulary_too_large")])


def require_cache_fits(index: Dataset, config: TrainerConfig, samples: int, streams: int, limit: float) -> None:
    """Raise InputError if the shards of one shuffle block exceed a node's cache: each sample would need a download.

    `samples`: number of training samples; `streams`: number of streams that this node reads; `limit`: bytes.
    """
    total = sum(shard.bytes for shard in index.train)
    largest = max(shard.bytes for shard in (*index.train, *index.validation))
    in_block = min(config.shuffle_block_samples, samples / config.data.streams) * total / samples
    # A block starts and ends within shards, and the last shard of the previous block is open for some time.
    required = min(total, streams * (in_block + 2 * largest)) + largest
    if required <= limit:
        return
    reason = (
        f"a node shuffles {streams} streams of {config.shuffle_block_samples} samples, whose shards need "
        f"{required / GIB:.2f} GiB, and its cache has a limit of {limit / GIB:.2f} GiB"
    )
    fix = "Lower data.shuffle_block_samples or data.streams, use smaller shards, or raise data.cache_gib"
    raise InputError(
        [Problem("config.data.shuffle_block_samples", config.shuffle_block_samples, reason, fix, "cache_too_small")]
    )
