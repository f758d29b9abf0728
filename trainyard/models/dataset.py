"""The index of a dataset of shards: `dataset.json`, written last, so that a dataset without it does not count."""

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, TypeAdapter, model_validator

from trainyard.base import Contract

INDEX = "dataset.json"


class Shard(Contract):
    """One file."""

    key: str = Field(description="File name relative to the index.")
    count: int = Field(gt=0, description="Number of tokens, or of images, in the file.")
    bytes: int = Field(gt=0, description="Size of the file.")
    sha256: str = Field(pattern="^[0-9a-f]{64}$", description="SHA-256 of the file.")


class _Dataset(Contract):
    name: str = Field(description="Name of the dataset.")
    source: str = Field(description="What it was made from, in words.")
    train: tuple[Shard, ...] = Field(min_length=1, description="Shards to train on, in order.")
    validation: tuple[Shard, ...] = Field(min_length=1, description="Held-out shards, in order.")


class TokenDataset(_Dataset):
    """Text. Its shards are consecutive tokens: raw little-endian integers without a header."""

    kind: Literal["tokens"] = Field("tokens", description="A dataset of tokens.")
    tokenizer: str = Field(
        "bytes", description="How text became tokens: bytes, or the file beside the index of a Hugging Face tokenizer."
    )
    dtype: Literal["uint8", "uint16", "uint32"] = Field("uint8", description="Type of one token in the files.")
    vocabulary: int = Field(256, gt=1, description="Number of token ids.")
    end: int | None = Field(None, ge=0, description="Token id that ends each document; none where nothing does.")
    mask: int | None = Field(None, ge=0, description="Token id of what is masked; none where the tokenizer has none.")

    @model_validator(mode="after")
    def _shards_hold_their_tokens(self) -> Self:
        width = int(self.dtype.removeprefix("uint")) // 8
        for shard in (*self.train, *self.validation):
            if shard.bytes != shard.count * width:
                wanted = f"{shard.count} tokens of {self.dtype} are {shard.count * width} bytes"
                raise ValueError(f"{shard.key} has {shard.bytes} bytes, and {wanted}: prepare the dataset anew")
        return self


class ImageDataset(_Dataset):
    """Labelled images. Its shards are tar files as WebDataset has them: `NAME.jpg` or `NAME.png`, then `NAME.cls`."""

    kind: Literal["images"] = Field(description="A dataset of images.")
    classes: tuple[str, ...] = Field(min_length=2, description="Names of the classes, by their number.")


def _kind_of(value: Any) -> str:
    return f"[{value.get('kind', 'tokens') if isinstance(value, dict) else getattr(value, 'kind', 'tokens')}]"


Dataset = Annotated[
    Annotated[TokenDataset, Tag("[tokens]")] | Annotated[ImageDataset, Tag("[images]")], Discriminator(_kind_of)
]
DATASET: TypeAdapter[Dataset] = TypeAdapter(Dataset)
