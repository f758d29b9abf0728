"""Copies the files of a model that are no weights: tokenizer, chat template and settings of generation."""

import json
from collections.abc import Mapping
from pathlib import Path

from trainer.data.index import read_index
from trainer.models.pretrained import CONFIG
from trainer.storage import Storage
from trainyard.models.dataset import INDEX, TokenDataset

# Files that transformers and vLLM read with a tokenizer.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
)
GENERATION_CONFIG = "generation_config.json"


def tokenizer_files_in(folder: Path) -> dict[str, Path]:
    """Return the files of a tokenizer in a folder by name."""
    return {name: folder / name for name in TOKENIZER_FILES if (folder / name).is_file()}


def special_tokens_of(storage: Storage) -> dict[str, int | None]:
    """Return the ids of special tokens by their keys in config.json, of a dataset or a model; empty if unknown.

    Raises InputError for an invalid index of a dataset.
    """
    if storage.exists(INDEX):
        index = read_index(storage)
        return index.special_tokens if isinstance(index, TokenDataset) else {}
    if (content := storage.read(CONFIG)) is None:
        return {}
    config = json.loads(content)
    return {key: config.get(key) for key in ("bos_token_id", "eos_token_id")}


def copy_model_files(
    target: Storage,
    folder: str,
    dataset: Storage | None,
    model: Storage | None,
    special_tokens: Mapping[str, int | None],
) -> None:
    """Copy the tokenizer of the dataset, or else of the model that was trained further, to the exported model.

    `special_tokens`: for generation_config.json, unless the model has one.
    """
    for source in (dataset, model):
        if source is not None and source.exists("tokenizer.json"):
            for name in TOKENIZER_FILES:
                if (content := source.read(name)) is not None:
                    target.write(folder + name, content)
            break
    content = model.read(GENERATION_CONFIG) if model is not None else None
    known = {name: token for name, token in special_tokens.items() if token is not None}
    if content is None and known:
        content = json.dumps(known, indent=1).encode()
    if content is not None:
        target.write(folder + GENERATION_CONFIG, content)
