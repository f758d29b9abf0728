"""A checkpoint's files in a folder or in S3, written and read by `torch.distributed.checkpoint`, checked while read.

`.metadata` is written last and whole, so it is the commit mark: a checkpoint without it does not count. It says which
object holds which tensor, from which byte to which: an entry.
"""

import io
import pickle
from typing import Any

import torch
from torch.distributed.checkpoint._nested_dict import set_element  # type: ignore[attr-defined]
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.state_dict_loader import load

from contract.layout import COMMIT_MARK
from trainer.checkpoints.checking import Checking
from trainer.checkpoints.failures import Damaged
from trainer.checkpoints.state import without_warnings
from trainer.storage import Storage, open_storage


def writer(uri: str, *, staged: bool) -> FileSystemWriter:
    """For one try of a save. `staged`: the tensors are copies in the host's memory already."""
    ahead = 0 if staged else 10_000_000  # bytes on their way from a GPU; 0 also keeps a thread off its main stream
    if "://" not in uri:
        return FileSystemWriter(uri, per_thread_copy_ahead=ahead, overwrite=True)
    from trainer.checkpoints.s3 import s3_writer

    return s3_writer(uri, ahead)


def read_metadata(uri: str) -> Metadata:
    """What a complete checkpoint says it holds. Raises Damaged where it can't be read as that."""
    storage = open_storage(uri, "URI")
    content = storage.read(COMMIT_MARK)
    if content is None:
        raise FileNotFoundError(f"{storage.uri}{COMMIT_MARK} is not there: the checkpoint is not complete")
    try:
        metadata = pickle.loads(content)  # noqa: S301  the library's own format, from the run's own storage
        if not isinstance(metadata, Metadata) or not isinstance(metadata.storage_data, dict):
            raise TypeError("it holds something else")
    except Exception as error:
        raise Damaged(f"{COMMIT_MARK} can't be read ({type(error).__name__}: {error})") from error
    _require_objects(storage, metadata)
    return metadata


def fill(content: dict[str, Any], uri: str, metadata: Metadata) -> None:
    """Read into the tensors of `content`, in place, and into its other values; this process alone, without a group.

    Only what `content` names is read, and of sharded tensors only this rank's part. Raises Damaged.
    """
    try:
        with without_warnings():
            load(content, storage_reader=reader(uri, metadata), planner=_Planner(), no_dist=True)
    except CheckpointException as failed:  # no Exception: it would pass by those who tell the other ranks
        raise next(error for error, _ in failed.failures.values()) from failed


def reader(uri: str, metadata: Metadata) -> FileSystemReader:
    if "://" not in uri:
        return FolderReader(uri, metadata)
    from trainer.checkpoints.s3 import S3Reader

    return S3Reader(uri, metadata)


def _require_objects(storage: Storage, metadata: Metadata) -> None:
    """Raises Damaged where an object is missing or ends too early."""
    ends: dict[str, int] = {}
    for entry in metadata.storage_data.values():
        ends[entry.relative_path] = max(ends.get(entry.relative_path, 0), entry.offset + entry.length)
    sizes = storage.sizes("")
    for name, end in ends.items():
        if name not in sizes:
            raise Damaged(f"{name} is not there")
        if sizes[name] < end:
            raise Damaged(f"{name} has {sizes[name]} bytes of {end}")


class _Planner(DefaultLoadPlanner):
    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Numbers and words only: what was put in a checkpoint runs no code here."""
        place = self.mappings[read_item.dest_index.fqn]
        set_element(self.original_state_dict, place, torch.load(value, weights_only=True))


class FolderReader(Checking, FileSystemReader):
    """From a folder."""

    def __init__(self, path: str, metadata: Metadata) -> None:
        super().__init__(path)
        self.metadata = metadata
