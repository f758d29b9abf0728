"""Export of weights as safetensors in the layout of the Hugging Face libraries, under `export/` of the results.

The export has files of at most 4 GB, `model.safetensors.index.json` with each tensor's file, and `config.json`. A model
that fits in one file is `model.safetensors` without an index.
"""

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.tensor import DTensor

from trainer.checkpoints.failures import on_all_ranks, retry
from trainer.checkpoints.files import read_metadata
from trainer.checkpoints.reader import read_state_dict
from trainer.models.lora import is_adapter, lora_layers, merged_weight
from trainer.models.pretrained import CONFIG, INDEX, numbered_names
from trainer.models.pretrained_weights import SafetensorsReader, require_weights
from trainer.storage import Storage

MAX_FILE_BYTES = 4 * 10**9  # of tensors in one file
# Parts that torch adds to the names of wrapped modules.
_WRAPPERS = ("_checkpoint_wrapped_module.", "_orig_mod.", "_fsdp_wrapped_module.")

Rename = Callable[[str], str]  # `*` in its result: a tensor for each expert, see `numbered_names`


def _unchanged(name: str) -> str:
    return name


def _exported_type(type: torch.dtype, exported: torch.dtype | None) -> torch.dtype:
    return exported if exported is not None and type.is_floating_point else type


@dataclass(frozen=True)
class SafetensorsFile:
    """A file name and the names of the tensors in the file."""

    name: str
    tensors: tuple[str, ...]


@dataclass(frozen=True)
class _Part:
    """A tensor in a file: a whole tensor of the model, or that of one expert."""

    tensor: str  # its name
    expert: int | None  # None: whole
    numel: int

    def of(self, tensor: Tensor) -> Tensor:
        """Return this part of the whole tensor, not as a view of the weights of other experts."""
        return tensor if self.expert is None else tensor[self.expert].clone()


def _parts(sizes: Mapping[str, torch.Size]) -> Iterator[tuple[str, _Part]]:
    """Yield the tensors in the files by name. `sizes`: those of the model by `transformers_name`, or another rename."""
    for tensor, size in sizes.items():
        names = numbered_names(tensor, size[0] if size else 1)
        for number, name in enumerate(names):
            yield name, _Part(tensor, number if "*" in tensor else None, size.numel() // len(names))


def plan_files(stages: Iterable[Mapping[str, int]], limit: int = MAX_FILE_BYTES) -> list[list[SafetensorsFile]]:
    """Return the files of each pipeline stage. `stages`: bytes by tensor name; `limit`: bytes per file.

    Tensors are not split: a tensor above the limit has a separate file.
    """
    grouped: list[list[list[str]]] = []
    for sizes in stages:
        files: list[list[str]] = [[]]
        size = 0
        for name, bytes_ in sizes.items():
            if files[-1] and size + bytes_ > limit:
                files.append([])
                size = 0
            files[-1].append(name)
            size += bytes_
        grouped.append(files)
    count, number = sum(map(len, grouped)), 0
    planned: list[list[SafetensorsFile]] = []
    for files in grouped:
        planned.append([])
        for names in files:
            number += 1
            name = f"model-{number:05d}-of-{count:05d}.safetensors" if count > 1 else "model.safetensors"
            planned[-1].append(SafetensorsFile(name, tuple(names)))
    return planned


def export_model(
    model: nn.Module,
    config: Mapping[str, Any],
    storage: Storage,
    group: dist.ProcessGroup,
    *,
    rename: Rename = _unchanged,
    dtype: torch.dtype | None = None,
    folder: str = "export/",
    limit: int = MAX_FILE_BYTES,
) -> None:
    """Export a model. Called on all ranks of the group; tensors are gathered one at a time, so no device holds all.

    `model` is this rank's pipeline stage or shard, as for a checkpoint. Among ranks with the same tensors the first
    writes. `rename` returns the exported name of a tensor. `dtype`: type of exported floating-point tensors; None: that
    of the model. Low-rank matrices are merged into the weights. A tensor with two names is written once. `limit`: bytes
    per file. Raises OSError if the storage fails.
    """
    adapted = {rename(_unwrapped_name(name)): layer for name, layer in lora_layers(model).items()}
    tensors = {rename(name): tensor for name, tensor in named_tensors(model).items() if not is_adapter(name)}
    parts = dict(_parts({name: tensor.size() for name, tensor in tensors.items()}))
    sizes = {
        name: part.numel * _exported_type(tensors[part.tensor].dtype, dtype).itemsize for name, part in parts.items()
    }
    sizes_by_rank: list[dict[str, int]] = [{} for _ in range(dist.get_world_size(group))]
    dist.all_gather_object(sizes_by_rank, sizes, group=group)
    stages = [stage for rank, stage in enumerate(sizes_by_rank) if stage not in sizes_by_rank[:rank]]
    planned = plan_files(stages, limit)
    stage = stages.index(sizes)
    is_writer = sizes_by_rank.index(sizes) == dist.get_rank(group)

    def write(file: SafetensorsFile | None) -> None:
        content: dict[str, Tensor] = {}
        for whole, names in groupby(file.tensors if file else (), lambda name: parts[name].tensor):
            full_tensor = _gather(tensors[whole])
            if layer := adapted.get(whole):
                a, b = _gather(layer.lora_A.weight), _gather(layer.lora_B.weight)
                full_tensor = merged_weight(full_tensor, a, b, layer.scaling)
            if is_writer:
                type = _exported_type(full_tensor.dtype, dtype)
                content |= {name: parts[name].of(full_tensor).to(type).cpu().contiguous() for name in names}
        if file and is_writer:
            upload_tensors(content, storage, folder + file.name)

    for number in range(max(map(len, planned))):  # one file of each stage at a time: a failed upload stops all ranks
        file = planned[stage][number] if number < len(planned[stage]) else None
        retry(lambda file=file: on_all_ranks(lambda: write(file), group), "exporting to", storage.uri)  # type: ignore[misc]

    def finish() -> None:
        if dist.get_rank(group) == 0:
            write_index(storage, folder, planned, sum(sum(stage.values()) for stage in stages), config)

    retry(lambda: on_all_ranks(finish, group), "exporting to", storage.uri)


def export_checkpoint(
    uri: str,
    config: Mapping[str, Any],
    storage: Storage,
    *,
    rename: Rename = _unchanged,
    dtype: torch.dtype | None = None,
    shared: Iterable[Sequence[str]] = (),
    limit: int = MAX_FILE_BYTES,
) -> None:
    """Export the model of a checkpoint in one process without a process group, one file in memory at a time.

    `rename`, `dtype`, `limit`: as for `export_model`. `shared`: the exported names of each tensor with several names,
    all of which the checkpoint has. Raises OSError if the storage fails.
    """
    entries = _saved_entries(uri)
    tensors = {  # by exported name
        rename(name.removeprefix("model.")): (name, entry)
        for name, entry in entries.items()
        if name.startswith("model.") and isinstance(entry, TensorStorageMetadata)
    }
    types = {name: _exported_type(entry.properties.dtype, dtype) for name, (_, entry) in tensors.items()}
    parts = dict(_parts({name: entry.size for name, (_, entry) in tensors.items()}))
    sizes = {name: part.numel * types[part.tensor].itemsize for name, part in parts.items()}
    for names in shared:
        for name in [name for name in names if name in sizes][1:]:
            del sizes[name]

    def read(names: Sequence[str]) -> dict[str, Tensor]:
        saved = {name: tensors[parts[name].tensor][0] for name in names}
        state_dict = read_state_dict(uri, set(saved.values()))
        return {name: parts[name].of(state_dict[saved[name]]).to(types[parts[name].tensor]) for name in names}

    _write_files(sizes, read, config, storage, limit)


def export_adapted_checkpoint(
    uri: str,
    config: Mapping[str, Any],
    storage: Storage,
    base: SafetensorsReader,
    scaling: float,
    *,
    rename: Rename,
    dtype: torch.dtype,
    limit: int = MAX_FILE_BYTES,
) -> None:
    """Export the weights of `base`, with the low-rank matrices of a checkpoint merged into them.

    `scaling`: factor of the product of the matrices. The other arguments are those of `export_checkpoint`. Raises
    InputError if the base has no weight of a matrix's name and size, OSError if the storage fails.
    """
    state = read_state_dict(
        uri, {name for name in _saved_entries(uri) if name.startswith("model.") and is_adapter(name)}
    )
    matrices = {name.removeprefix("model."): tensor for name, tensor in state.items()}
    adapted = {
        rename(name.replace(".lora_A.", ".")): (tensor, matrices[name.replace(".lora_A.", ".lora_B.")])
        for name, tensor in matrices.items()
        if ".lora_A." in name
    }
    entries = base.read_metadata().state_dict_metadata
    require_weights({name: (len(b), a.size(1)) for name, (a, b) in adapted.items()}, entries, base.storage, "--base")
    sizes = {
        name: entry.size.numel() * dtype.itemsize
        for name, entry in entries.items()
        if isinstance(entry, TensorStorageMetadata) and "*" not in name  # the weights of single experts, not of all
    }

    def read(names: Sequence[str]) -> dict[str, Tensor]:
        content = {name: base.read_tensor(name) for name in names}
        for name in adapted.keys() & set(names):
            content[name] = merged_weight(content[name], *adapted[name], scaling)
        return {name: tensor.to(dtype) for name, tensor in content.items()}

    _write_files(sizes, read, config, storage, limit)


def _saved_entries(uri: str) -> Mapping[str, Any]:
    """Return what a checkpoint has, by name."""
    return retry(lambda: read_metadata(uri), "reading", uri, pauses_seconds=()).state_dict_metadata


def _write_files(
    sizes: dict[str, int],
    read: Callable[[Sequence[str]], dict[str, Tensor]],
    config: Mapping[str, Any],
    storage: Storage,
    limit: int,
) -> None:
    """Write the tensors that `read` returns, one file in memory at a time, and the index."""
    (files,) = plan_files([sizes], limit)
    for file in files:
        upload_tensors(read(file.tensors), storage, file.name)
    write_index(storage, "", [files], sum(sizes.values()), config)


def load_exported_weights(
    model: nn.Module, storage: Storage, *, rename: Rename = _unchanged, folder: str = "export/"
) -> None:
    """Load exported weights into a whole model, one file at a time."""
    # With all names of shared weights: the export may use another name than the first of this model.
    state_dict = model.state_dict(keep_vars=True)
    wholes = {rename(_unwrapped_name(name)): tensor for name, tensor in state_dict.items()}
    parts = dict(_parts({name: tensor.size() for name, tensor in wholes.items()}))
    tensors = {name: wholes[part.tensor] for name, part in parts.items()}
    missing = {(id(tensors[name]), part.expert): name for name, part in parts.items()}
    with tempfile.TemporaryDirectory(prefix="export-") as scratch, torch.no_grad():
        for key in sorted(storage.sizes(folder.rstrip("/"))):
            if "/" in key or not key.endswith(".safetensors"):
                continue
            storage.download(folder + key, Path(scratch) / key)
            for name, value in load_file(Path(scratch) / key).items():
                target, expert = tensors[name], parts[name].expert
                (target if expert is None else target[expert]).copy_(value)
                missing.pop((id(target), expert), None)
            (Path(scratch) / key).unlink()
    assert not missing, f"not in the export: {', '.join(missing.values())}"


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and persistent buffers by their names without wrappers, each tensor once."""
    tensors: dict[int, tuple[str, Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        tensors.setdefault(id(tensor), (_unwrapped_name(name), tensor))
    return dict(tensors.values())


def _unwrapped_name(name: str) -> str:
    return reduce(lambda shortened, wrapper: shortened.replace(wrapper, ""), _WRAPPERS, name)


def _gather(tensor: Tensor) -> Tensor:
    detached = tensor.detach()
    return detached.full_tensor() if isinstance(detached, DTensor) else detached


def upload_tensors(
    content: dict[str, Tensor], storage: Storage, key: str, metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors as one safetensors file to `key`."""
    with tempfile.TemporaryDirectory(prefix="export-") as scratch:
        path = Path(scratch) / "model.safetensors"
        save_file(content, path, metadata={"format": "pt", **(metadata or {})})
        storage.upload(path, key)


def write_index(
    storage: Storage, folder: str, planned: list[list[SafetensorsFile]], total: int, config: Mapping[str, Any]
) -> None:
    """Write the index and `config.json`, and delete files of an earlier export with another number of files.

    `total`: bytes of all tensors.
    """
    files = [file for stage in planned for file in stage]
    if len(files) > 1:
        file_by_tensor = {name: file.name for file in files for name in file.tensors}
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(file_by_tensor.items()))}
        storage.write(folder + INDEX, json.dumps(index, indent=1).encode())
    storage.write(folder + CONFIG, json.dumps(dict(config), indent=1).encode())
    current = {file.name for file in files} | ({INDEX} if len(files) > 1 else set())
    for key in storage.sizes(folder.rstrip("/")):
        if key.startswith("model") and "safetensors" in key and key not in current:
            storage.delete(folder + key)
