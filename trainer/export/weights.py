"""Weights for others: safetensors as the Hugging Face libraries read them, under `export/` of the results.

Files of at most 4 GB and `model.safetensors.index.json`, which names each tensor's file; a model that fits in one file
is `model.safetensors` alone. Beside them `config.json`.
"""

import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.tensor import DTensor

from trainer.checkpoints.failures import insist, together
from trainer.checkpoints.files import read_metadata
from trainer.checkpoints.reader import load_whole
from trainer.storage import Storage

INDEX = "model.safetensors.index.json"
CONFIG = "config.json"
LIMIT = 4 * 10**9  # bytes of tensors in one file
# What torch puts into the names of modules that it wraps.
_WRAPPERS = ("_checkpoint_wrapped_module.", "_orig_mod.", "_fsdp_wrapped_module.")


@dataclass(frozen=True)
class File:
    """One file and the tensors in it, by name."""

    name: str
    tensors: tuple[str, ...]


def plan(stages: Iterable[Mapping[str, int]], limit: int = LIMIT) -> list[list[File]]:
    """Files of each stage, which gives bytes by tensor. No tensor is cut: one above the limit has a file of its own."""
    filled: list[list[list[str]]] = []
    for sizes in stages:
        files: list[list[str]] = [[]]
        size = 0
        for name, bytes_ in sizes.items():
            if files[-1] and size + bytes_ > limit:
                files.append([])
                size = 0
            files[-1].append(name)
            size += bytes_
        filled.append(files)
    count, number = sum(map(len, filled)), 0
    planned: list[list[File]] = []
    for files in filled:
        planned.append([])
        for names in files:
            number += 1
            name = f"model-{number:05d}-of-{count:05d}.safetensors" if count > 1 else "model.safetensors"
            planned[-1].append(File(name, tuple(names)))
    return planned


def export_model(
    model: nn.Module,
    config: Mapping[str, Any],
    storage: Storage,
    group: dist.ProcessGroup,
    *,
    prefix: str = "",
    folder: str = "export/",
    limit: int = LIMIT,
) -> None:
    """Write a model by all ranks of the group together, each tensor gathered alone: no device holds the whole.

    `model` is this rank's stage or part, as for a checkpoint. Of ranks with the same tensors the first one writes.
    `prefix` is taken from the names. A tensor that two names share is written once. Raises OSError.
    """
    tensors = {name.removeprefix(prefix): tensor for name, tensor in named(model).items()}
    sizes = {name: tensor.numel() * tensor.element_size() for name, tensor in tensors.items()}
    everyone: list[dict[str, int]] = [{} for _ in range(dist.get_world_size(group))]
    dist.all_gather_object(everyone, sizes, group=group)
    stages = [stage for rank, stage in enumerate(everyone) if stage not in everyone[:rank]]
    planned = plan(stages, limit)
    stage = stages.index(sizes)
    writes = everyone.index(sizes) == dist.get_rank(group)

    def write(file: File | None) -> None:
        content = {}
        for name in file.tensors if file else ():
            whole = _whole(tensors[name])
            if writes:
                content[name] = whole.cpu().contiguous()
        if file and writes:
            upload(content, storage, folder + file.name)

    for number in range(max(map(len, planned))):  # in step, so that a failed upload reaches all
        file = planned[stage][number] if number < len(planned[stage]) else None
        insist(lambda file=file: together(lambda: write(file), group), "exporting to", storage.uri)  # type: ignore[misc]

    def finish() -> None:
        if dist.get_rank(group) == 0:
            write_index(storage, folder, planned, sum(sum(stage.values()) for stage in stages), config)

    insist(lambda: together(finish, group), "exporting to", storage.uri)


def export_checkpoint(
    uri: str,
    config: Mapping[str, Any],
    storage: Storage,
    *,
    prefix: str = "",
    shared: Iterable[Sequence[str]] = (),
    limit: int = LIMIT,
) -> None:
    """The same from a checkpoint, by one process without a group, one file in memory at a time. Raises OSError.

    `shared`: names that one tensor has in the model. The checkpoint has it under each.
    """
    entries = insist(lambda: read_metadata(uri), "reading", uri, pauses=()).state_dict_metadata
    sizes = {
        name.removeprefix("model.").removeprefix(prefix): entry.size.numel() * entry.properties.dtype.itemsize
        for name, entry in entries.items()
        if name.startswith("model.") and isinstance(entry, TensorStorageMetadata)
    }
    for names in shared:
        for name in [name for name in names if name in sizes][1:]:
            del sizes[name]
    (files,) = plan([sizes], limit)
    for file in files:
        saved = {f"model.{prefix}{name}": name for name in file.tensors}
        found = load_whole(uri, set(saved))
        upload({name: found[full] for full, name in saved.items()}, storage, file.name)
    write_index(storage, "", [files], sum(sizes.values()), config)


def fill_from(model: nn.Module, storage: Storage, *, prefix: str = "", folder: str = "export/") -> None:
    """Put exported weights into a whole model, one file at a time."""
    # By all their names: a checkpoint may have kept shared weights under another one than this model's first.
    tensors = {_plain(name).removeprefix(prefix): each for name, each in model.state_dict(keep_vars=True).items()}
    left = {id(tensor): name for name, tensor in tensors.items()}
    with tempfile.TemporaryDirectory(prefix="export-") as scratch, torch.no_grad():
        for key in sorted(storage.sizes(folder.rstrip("/"))):
            if "/" in key or not key.endswith(".safetensors"):
                continue
            storage.download(folder + key, Path(scratch) / key)
            for name, value in load_file(Path(scratch) / key).items():
                tensors[name].copy_(value)
                left.pop(id(tensors[name]), None)
            (Path(scratch) / key).unlink()
    assert not left, f"not in the export: {', '.join(left.values())}"


def named(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and what else is saved of a model, by the names that it had before it was wrapped, each once."""
    found: dict[int, tuple[str, Tensor]] = {}
    for wrapped, tensor in model.state_dict(keep_vars=True).items():
        found.setdefault(id(tensor), (_plain(wrapped), tensor))
    return dict(found.values())


def _plain(wrapped: str) -> str:
    return reduce(lambda name, wrapper: name.replace(wrapper, ""), _WRAPPERS, wrapped)


def _whole(tensor: Tensor) -> Tensor:
    detached = tensor.detach()
    return detached.full_tensor() if isinstance(detached, DTensor) else detached


def upload(content: dict[str, Tensor], storage: Storage, key: str, metadata: Mapping[str, str] | None = None) -> None:
    with tempfile.TemporaryDirectory(prefix="export-") as scratch:
        path = Path(scratch) / "model.safetensors"
        save_file(content, path, metadata={"format": "pt", **(metadata or {})})
        storage.upload(path, key)


def write_index(
    storage: Storage, folder: str, planned: list[list[File]], total: int, config: Mapping[str, Any]
) -> None:
    """Index and configuration; and what an export of another number of files left goes."""
    files = [file for stage in planned for file in stage]
    if len(files) > 1:
        places = {name: file.name for file in files for name in file.tensors}
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
        storage.write(folder + INDEX, json.dumps(index, indent=1).encode())
    storage.write(folder + CONFIG, json.dumps(dict(config), indent=1).encode())
    kept = {file.name for file in files} | ({INDEX} if len(files) > 1 else set())
    for key in storage.sizes(folder.rstrip("/")):
        if key.startswith("model") and "safetensors" in key and key not in kept:
            storage.delete(folder + key)
