"""Reads weights in the safetensors format from a folder or S3 into a parallelized model, each rank its own part."""

import hashlib
import json
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from trainer.checkpoints.failures import retry
from trainer.models.lora import is_adapter
from trainer.models.pretrained import INDEX, PATH_KEY, numbered_names, transformers_name
from trainer.storage import Storage
from trainyard.errors import InputError, Problem

_MAX_READ_BYTES = 256 * 2**20
_THREADS = 8
_EXPERT = re.compile(r"(\.mlp\.experts\.)\d+(\.)")
_FINGERPRINT_TENSORS, _FINGERPRINT_BYTES = 64, 4096
_LENGTH_BYTES = 8  # of the length of the header, at the start of a file
# Names of types in the format, see github.com/huggingface/safetensors.
_TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class _Tensor:
    """A tensor in a file."""

    key: str
    type: torch.dtype
    shape: tuple[int, ...]
    start: int  # byte in the file

    @property
    def row_bytes(self) -> int:
        return prod(self.shape[1:]) * self.type.itemsize

    @property
    def stop(self) -> int:
        return self.start + prod(self.shape) * self.type.itemsize


def load_weights(module: nn.Module, storage: Storage) -> None:
    """Fill the parameters of a decoder, or of this rank's stage and shards, from safetensors files, in place.

    Low-rank matrices are not filled. A rank reads the rows of its shards only, in reads of at most 256 MiB. Raises
    InputError if a weight is missing or has another size, OSError if the storage fails for minutes.
    """
    reader = SafetensorsReader(storage)
    targets = {
        transformers_name(name): parameter.detach()
        for name, parameter in module.named_parameters()
        if not is_adapter(name)
    }
    entries = reader.read_metadata().state_dict_metadata
    require_weights({name: tuple(target.size()) for name, target in targets.items()}, entries, storage, PATH_KEY)
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # of torch, in a single process
        load(targets, storage_reader=reader, no_dist=True)


def require_weights(
    shapes: Mapping[str, tuple[int, ...]], entries: Mapping[str, Any], storage: Storage, key: str
) -> None:
    """Raise InputError, for the setting `key`, unless the files have all weights of these names and shapes.

    `entries`: tensors of the files by name, from `SafetensorsReader.read_metadata`.
    """
    problems = []
    for name, shape in shapes.items():
        entry = entries.get(name)
        if not isinstance(entry, TensorStorageMetadata):
            problems.append(f"has no weight {name}")
        elif tuple(entry.size) != shape:
            problems.append(f"has {name} of shape {tuple(entry.size)}, and the model requires {shape}")
    if problems:
        more = f", and {len(problems) - 1} more such weights" if len(problems) > 1 else ""
        fix = "Use all safetensors files that belong to this config.json"
        raise InputError([Problem(key, storage.uri, problems[0] + more, fix, "model_weights_mismatch")])


class SafetensorsReader(StorageReader):
    """A reader of torch.distributed.checkpoint for safetensors files. torch's own reader reads local files only."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._tensors: dict[str, _Tensor] = {}

    def reset(self, checkpoint_id: Any = None) -> None:
        """Do nothing: a reader is for one model."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Return false: the location is an argument of the constructor."""
        return False

    def read_metadata(self, *_args: Any, **_kwargs: Any) -> Metadata:
        """Return the names, types and sizes of all tensors, from the headers of the files.

        The files are those in the index, or else `model.safetensors`, or else all. The tensors of a layer's experts are
        also one tensor of `numbered_names`, in parts. Raises InputError if several files have a tensor of the same
        name.
        """
        if not self._tensors:
            self._tensors = self._read_headers()
        entries = {
            name: TensorStorageMetadata(
                TensorProperties(dtype=tensor.type),
                torch.Size(tensor.shape),
                [ChunkStorageMetadata(torch.Size([0] * len(tensor.shape)), torch.Size(tensor.shape))],
            )
            for name, tensor in self._tensors.items()
        }
        entries |= dict(self._stacked_entries())
        return Metadata(state_dict_metadata=dict(entries), storage_data={MetadataIndex(name): name for name in entries})

    def _stacked_entries(self) -> Iterator[tuple[str, TensorStorageMetadata]]:
        """Yield each weight of all experts of a layer, of which each expert's tensor is a part."""
        counts = Counter(_EXPERT.sub(r"\1*\2", name) for name in self._tensors if _EXPERT.search(name))
        for name, count in counts.items():
            parts = [self._tensors.get(each) for each in numbered_names(name, count)]
            first = parts[0]
            if first is None or any(part is None or part.shape != first.shape for part in parts):
                continue  # `require_weights` reports it
            origin, shape = [0] * len(first.shape), first.shape
            chunks = [
                ChunkStorageMetadata(torch.Size([number, *origin]), torch.Size([1, *shape])) for number in range(count)
            ]
            size = torch.Size([count, *shape])
            yield name, TensorStorageMetadata(TensorProperties(dtype=first.type), size, chunks)

    def _read_headers(self) -> dict[str, _Tensor]:
        if (index := self.storage.read(INDEX)) is not None:
            file_by_tensor: dict[str, str] = json.loads(index)["weight_map"]
            keys = sorted(set(file_by_tensor.values()))
        else:
            file_by_tensor = {}
            present = sorted(key for key in self.storage.sizes("") if "/" not in key and key.endswith(".safetensors"))
            keys = [key for key in present if key == "model.safetensors"] or present
        tensors: dict[str, _Tensor] = {}
        for key in keys:
            for name, tensor in self._read_header(key):
                if file_by_tensor.get(name, key) != key:
                    continue
                if name in tensors:
                    reason = f"has {name} in two files, {tensors[name].key} and {key}"
                    fix = f"Remove the file that does not belong to the model, or add {INDEX}"
                    raise InputError([Problem(PATH_KEY, self.storage.uri, reason, fix, "duplicate_weight")])
                tensors[name] = tensor
        return tensors

    def _read_header(self, key: str) -> Iterator[tuple[str, _Tensor]]:
        length = int.from_bytes(self._read_range(key, 0, _LENGTH_BYTES), "little")
        header = json.loads(self._read_range(key, _LENGTH_BYTES, _LENGTH_BYTES + length))
        for name, entry in header.items():
            if name != "__metadata__" and entry["dtype"] in _TYPES:
                start = _LENGTH_BYTES + length + entry["data_offsets"][0]
                yield name, _Tensor(key, _TYPES[entry["dtype"]], tuple(entry["shape"]), start)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *_args: Any, **_kwargs: Any) -> None:
        """Do nothing: `read_metadata` has read the positions of the tensors."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return the plan unchanged."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Return the plans unchanged."""
        return plans

    def fingerprint(self) -> str:
        """Return a digest of parts of the weights, by which models of the same shape differ."""
        self.read_metadata()
        names = sorted(self._tensors)
        names = names[:: max(1, len(names) // _FINGERPRINT_TENSORS)]
        digest = hashlib.sha256()
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="fingerprint") as threads:
            for name, content in zip(names, threads.map(self._read_middle, names), strict=True):
                digest.update(f"{name} {self._tensors[name].type}".encode() + content)
        return f"sha256:{digest.hexdigest()[:16]}"

    def _read_middle(self, name: str) -> bytes:
        tensor = self._tensors[name]
        start = max(tensor.start, (tensor.start + tensor.stop - _FINGERPRINT_BYTES) // 2)
        return self._read_range(tensor.key, start, min(tensor.stop, start + _FINGERPRINT_BYTES))

    def _read_range(self, key: str, start: int, stop: int) -> bytes:
        """Read bytes of a file, and again after a failure of the storage."""
        return retry(lambda: self.storage.read_range(key, start, stop), "reading", self.storage.uri + key)

    def read_tensor(self, name: str) -> Tensor:
        """Return a whole tensor. Raises KeyError if the model has none of this name."""
        tensor = self._tensors[name]
        content = self._read_range(tensor.key, tensor.start, tensor.stop)
        return torch.frombuffer(bytearray(content), dtype=tensor.type).view(tensor.shape)

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read the items of a plan into their targets, which may have another type."""
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="weights") as threads:
            for result in [threads.submit(self._read_item, item, planner) for item in plan.items]:
                result.result()
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _read_item(self, item: ReadItem, planner: LoadPlanner) -> None:
        name, start_of_part = item.storage_index.fqn, item.storage_index.offset
        resolved = planner.resolve_tensor(item)
        target = resolved.detach()
        (first, *offsets), (rows, *lengths) = item.storage_offsets, item.lengths
        if "*" in name and start_of_part is not None:  # one expert of the weights of all
            name = name.replace("*", str(start_of_part[0]))
            target, (first, *offsets), (rows, *lengths) = target[0], offsets, lengths
        tensor = self._tensors[name]
        at_once = max(1, _MAX_READ_BYTES // tensor.row_bytes)
        for row in range(0, rows, at_once):
            stop = min(row + at_once, rows)
            start = tensor.start + (first + row) * tensor.row_bytes
            content = self._read_range(tensor.key, start, start + (stop - row) * tensor.row_bytes)
            part = torch.frombuffer(bytearray(content), dtype=tensor.type).view(stop - row, *tensor.shape[1:])
            for dimension, (offset, length) in enumerate(zip(offsets, lengths, strict=True), 1):
                part = part.narrow(dimension, offset, length)
            target[row:stop].copy_(part)
        planner.commit_tensor(item, resolved)
