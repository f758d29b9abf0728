"""Files of a checkpoint in a folder or in S3, as `torch.distributed.checkpoint` writes and reads them.

`.metadata` is the commit mark: it is written last, so that a checkpoint without it is incomplete. It maps each tensor
to an entry: a file and a byte range.
"""

import io
from typing import Any

import torch
from torch.distributed.checkpoint._nested_dict import set_element  # type: ignore[attr-defined]
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import ReadItem

from trainer.checkpoints.entries import CheckpointRead
from trainer.checkpoints.failures import DamagedCheckpointError
from trainer.checkpoints.metadata_pickle import load_metadata
from trainer.storage import Storage, open_storage
from trainyard.models.layout import COMMIT_MARK


def create_storage_writer(uri: str, *, staged: bool) -> FileSystemWriter:
    """Create a writer for one attempt of a save. `staged`: the tensors are already copies in host memory."""
    # Bytes that are copied ahead from a GPU. 0 also keeps the saving thread off the GPU's main stream.
    copy_buffer_bytes = 0 if staged else 10_000_000
    if "://" not in uri:
        return FileSystemWriter(uri, per_thread_copy_ahead=copy_buffer_bytes, overwrite=True)
    from trainer.checkpoints.s3 import s3_writer

    return s3_writer(uri, copy_buffer_bytes)


def read_metadata(uri: str) -> Metadata:
    """Read the metadata of a complete checkpoint and check that all its files exist.

    Raises FileNotFoundError if it is incomplete, DamagedCheckpointError if the metadata can't be read or files are
    missing or too short.
    """
    storage = open_storage(uri, "URI")
    content = storage.read(COMMIT_MARK)
    if content is None:
        raise FileNotFoundError(f"{storage.uri}{COMMIT_MARK} does not exist: the checkpoint is not complete")
    try:
        metadata = load_metadata(content)
        if not isinstance(metadata, Metadata) or not isinstance(metadata.storage_data, dict):
            raise TypeError("it is no checkpoint metadata")
    except Exception as error:
        raise DamagedCheckpointError(f"{COMMIT_MARK} can't be read ({type(error).__name__}: {error})") from error
    _require_files(storage, metadata)
    return metadata


def plan_read(content: dict[str, Any], uri: str, metadata: Metadata) -> CheckpointRead:
    """Plan the read of a checkpoint into `content`, in place: its tensors and its other values.

    The plan has only the names that `content` has, and of sharded tensors only this rank's shard.
    """
    source, planner = _storage_reader(uri), _Planner()
    planner.set_up_planner(content, metadata)
    source.set_up_storage_reader(metadata, is_coordinator=True)
    return CheckpointRead(source, planner.finish_plan(planner.create_local_plan()), planner)


def _storage_reader(uri: str) -> FileSystemReader:
    if "://" not in uri:
        return FileSystemReader(uri)
    from trainer.checkpoints.s3 import s3_reader

    return s3_reader(uri)


def _require_files(storage: Storage, metadata: Metadata) -> None:
    """Raise DamagedCheckpointError if a file is missing or too short."""
    required_sizes: dict[str, int] = {}
    for entry in metadata.storage_data.values():
        end = entry.offset + entry.length
        required_sizes[entry.relative_path] = max(required_sizes.get(entry.relative_path, 0), end)
    sizes = storage.sizes("")
    for name, required in required_sizes.items():
        if name not in sizes:
            raise DamagedCheckpointError(f"{name} does not exist")
        if sizes[name] < required:
            raise DamagedCheckpointError(f"{name} has {sizes[name]} of {required} bytes")


class _Planner(DefaultLoadPlanner):
    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Load with `weights_only`, unlike the base class, so that a checkpoint can't execute code."""
        path = self.mappings[read_item.dest_index.fqn]
        set_element(self.original_state_dict, path, torch.load(value, weights_only=True))
