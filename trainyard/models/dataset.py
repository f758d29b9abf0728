"""The index of a dataset of shards: `dataset.json`. It is written last: a dataset without it is incomplete."""

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, TypeAdapter, model_validator

from trainyard.base import StrictModel

INDEX = "dataset.json"
# Rows of packed conversations are uint32: a token id, and two flags.
TOKEN_BITS = (1 << 30) - 1
STARTS_DOCUMENT = 1 << 30  # the token is the first of a conversation
HAS_LOSS = 1 << 31  # the model is trained to predict this token


class Shard(StrictModel):
    """One file of a dataset."""

    key: str = Field(description="File name relative to the index.")
    count: int = Field(gt=0, description="Number of tokens, or of images, in the file.")
    bytes: int = Field(gt=0, description="Size of the file.")
    sha256: str = Field(pattern="^[0-9a-f]{64}$", description="SHA-256 of the file.")


class _Dataset(StrictModel):
    name: str = Field(description="Name of the dataset.")
    source: str = Field(description="Description of the source of the data.")
    train: tuple[Shard, ...] = Field(min_length=1, description="Shards to train on, in order.")
    validation: tuple[Shard, ...] = Field(min_length=1, description="Held-out shards, in order.")


class TokenDataset(_Dataset):
    """A text dataset. Its shards are consecutive tokens: raw little-endian integers without a header.

    With `row_tokens`, they are rows of that many tokens with flags: several conversations, none of which is split.
    """

    kind: Literal["tokens"] = Field("tokens", description="A dataset of tokens.")
    tokenizer: str = Field(
        "bytes",
        description="Tokenizer of the text: bytes, or the file name of a Hugging Face tokenizer next to the index.",
    )
    dtype: Literal["uint8", "uint16", "uint32"] = Field("uint8", description="Type of one token in the files.")
    vocabulary: int = Field(256, gt=1, description="Number of token ids.")
    end: int | None = Field(
        None, ge=0, description="Token id at the end of each document; null if documents have no end token."
    )
    start: int | None = Field(
        None, ge=0, description="Token id at the start of each document; null if documents have no such token."
    )
    row_tokens: int | None = Field(
        None, gt=2, description="Tokens of a row of packed conversations; null: text, from which windows are cut."
    )
    mask: int | None = Field(
        None, ge=0, description="Token id of masked positions; null if the tokenizer has no such token."
    )

    @model_validator(mode="after")
    def _require_matching_shard_sizes(self) -> Self:
        width = int(self.dtype.removeprefix("uint")) // 8
        for shard in (*self.train, *self.validation):
            if shard.bytes != shard.count * width:
                expected = f"{shard.count} tokens of {self.dtype} are {shard.count * width} bytes"
                raise ValueError(f"{shard.key} has {shard.bytes} bytes, but {expected}: prepare the dataset again")
            if self.row_tokens is not None and (shard.count % self.row_tokens or self.dtype != "uint32"):
                raise ValueError(f"{shard.key} has no rows of {self.row_tokens} uint32: prepare the dataset again")
        return self

    @property
    def special_tokens(self) -> dict[str, int | None]:
        """Token ids by their keys in config.json of transformers."""
        return {"bos_token_id": self.start, "eos_token_id": self.end}


class ImageDataset(_Dataset):
    """A dataset of labelled images. Its shards are WebDataset tar files: `NAME.jpg` or `NAME.png`, then `NAME.cls`."""

    kind: Literal["images"] = Field(description="A dataset of images.")
    classes: tuple[str, ...] = Field(min_length=2, description="Names of the classes; the index is the label.")


def _kind_of(value: Any) -> str:
    return f"[{value.get('kind', 'tokens') if isinstance(value, dict) else getattr(value, 'kind', 'tokens')}]"


Dataset = Annotated[
    Annotated[TokenDataset, Tag("[tokens]")] | Annotated[ImageDataset, Tag("[images]")], Discriminator(_kind_of)
]
DATASET: TypeAdapter[Dataset] = TypeAdapter(Dataset)
