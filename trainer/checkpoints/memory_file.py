"""Files in host memory, each with copies of tensors. A file counts once it has its metadata, which is written last."""

import json
import os
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from trainer.checkpoints.failures import DamagedCheckpointError
from trainer.checkpoints.staging import Stager, pin

Part = Literal["rank", "shard"]
"""Part of the state: `rank` has one rank's generators and buffers, `shard` the tensors that replicas may share."""
_ALIGNMENT = 64


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file. `offset`: of its first byte."""

    offset: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype itself."""
        dtype = getattr(torch, self.dtype)
        assert isinstance(dtype, torch.dtype)
        return dtype


@dataclass(frozen=True)
class FileMetadata:
    """The metadata of a complete file.

    `owner`: the rank, or the lowest rank with the same tensors. `size`: of the file, in bytes. `checksum`: CRC-32 of
    the file. `values`: what the state has in addition to tensors.
    """

    part: Part
    owner: int
    step: int
    world_size: int
    size: int
    checksum: int
    tensors: dict[str, StoredTensor]
    values: dict[str, Any]

    def to_bytes(self) -> bytes:
        """Return the metadata as JSON. Losses in it may be NaN."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> "FileMetadata":
        """Return the metadata in JSON."""
        fields = json.loads(content)
        fields["tensors"] = {
            name: StoredTensor(stored["offset"], stored["dtype"], tuple(stored["shape"]))
            for name, stored in fields["tensors"].items()
        }
        return cls(**fields)


def metadata_file(file: Path) -> Path:
    """Return the path of the metadata of a file."""
    return file.with_name(f"{file.name}.json")


def read_metadata(file: Path) -> FileMetadata | None:
    """Return the metadata of a file; None if the file is not complete."""
    try:
        return FileMetadata.from_bytes(metadata_file(file).read_bytes())
    except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError):
        return None


def content_size(content: Mapping[str, Tensor]) -> int:
    """Return the number of bytes of a file with these tensors."""
    return max(_ALIGNMENT, sum(_aligned(tensor.nbytes) for tensor in content.values()))


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


class MemoryFile:
    """A file in host memory that is written again and again. Its memory is allocated as long as the file exists."""

    def __init__(self, path: Path, size: int) -> None:
        """Allocate the file, unless it exists with that size. Raises OSError if the memory does not suffice."""
        self.path, self.size = path, size
        if not (path.exists() and path.stat().st_size == size):
            metadata_file(path).unlink(missing_ok=True)
            path.unlink(missing_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                # Without it, a write to memory that does not exist ends the process (SIGBUS).
                os.posix_fallocate(descriptor, 0, size)
            finally:
                os.close(descriptor)
        self.memory = torch.from_file(str(path), shared=True, size=size, dtype=torch.uint8)
        if torch.cuda.is_available():
            pin(self.memory)
        self._stager = Stager(self._allocate)
        self._end = 0

    @property
    def metadata(self) -> FileMetadata | None:
        """The metadata; None if the file is not complete."""
        return read_metadata(self.path)

    def clear(self) -> None:
        """Delete the metadata: the content is not complete any more."""
        metadata_file(self.path).unlink(missing_ok=True)

    def stage(self, content: Mapping[str, Tensor]) -> Callable[[], dict[str, StoredTensor]]:
        """Return a function that copies the tensors into the file, for which `Stager.stage` applies.

        It returns where they are in the file. The tensors must have the same sizes in each call.
        """
        self.clear()
        copy_all = self._stager.stage(dict(content))

        def copy() -> dict[str, StoredTensor]:
            return {
                name: StoredTensor(
                    tensor.data_ptr() - self.memory.data_ptr(), str(tensor.dtype).split(".")[1], tuple(tensor.shape)
                )
                for name, tensor in copy_all().items()
            }

        return copy

    def checksum(self) -> int:
        """Return the CRC-32 of the content."""
        return zlib.crc32(self.memory.numpy().data)

    def commit(self, metadata: FileMetadata) -> None:
        """Write the metadata."""
        temporary = self.path.with_name(f"{self.path.name}.new")
        temporary.write_bytes(metadata.to_bytes())
        temporary.rename(metadata_file(self.path))

    def _allocate(self, live: Tensor) -> Tensor:
        start, self._end = self._end, self._end + _aligned(live.nbytes)
        assert self._end <= self.size, "the sizes of tensors do not change"
        return self.memory[start : start + live.nbytes].view(live.dtype).view(live.shape)


def read_tensors(file: Path, metadata: FileMetadata, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a complete file, which is mapped into memory.

    Raises DamagedCheckpointError if the content does not match the metadata, or differs from `expected` in names, sizes
    or dtypes.
    """
    if not file.exists() or file.stat().st_size != metadata.size:
        raise DamagedCheckpointError(f"{file} does not have the {metadata.size} bytes of its metadata")
    memory = torch.from_file(str(file), shared=True, size=metadata.size, dtype=torch.uint8)
    if zlib.crc32(memory.numpy().data) != metadata.checksum:
        raise DamagedCheckpointError(f"the CRC-32 of {file} does not match its content")
    stored = {name: (each.torch_dtype, each.shape) for name, each in metadata.tensors.items()}
    if stored != {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in expected.items()}:
        raise DamagedCheckpointError(f"{file} has tensors of another model")
    return {
        name: memory[each.offset : each.offset + expected[name].nbytes].view(each.torch_dtype).view(each.shape)
        for name, each in metadata.tensors.items()
    }
