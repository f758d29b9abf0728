"""The index of a dataset of token shards: `dataset.json`, written last, so that a dataset without it does not count."""

from typing import Literal

from pydantic import Field

from contract.base import Contract

INDEX = "dataset.json"


class Shard(Contract):
    """One file of consecutive tokens."""

    key: str = Field(description="File name relative to the index.")
    tokens: int = Field(gt=0, description="Number of tokens in the file.")
    sha256: str = Field(pattern="^[0-9a-f]{64}$", description="SHA-256 of the file.")


class DatasetIndex(Contract):
    """What a dataset under DATA_URI holds. Tokens are raw little-endian integers without a header."""

    name: str = Field(description="Name of the dataset.")
    source: str = Field(description="What it was made from, in words.")
    tokenizer: Literal["bytes"] = Field("bytes", description="How text became tokens.")
    dtype: Literal["uint8"] = Field("uint8", description="Type of one token in the files.")
    vocabulary: int = Field(256, gt=1, description="Number of token ids.")
    train: tuple[Shard, ...] = Field(min_length=1, description="Shards to train on, in order.")
    validation: tuple[Shard, ...] = Field(min_length=1, description="Held-out shards, in order.")
