"""A checkpoint's files in a folder or in S3, as `torch.distributed.checkpoint` writes and plans to read them.

`.metadata` is written last and whole, so it is the commit mark: a checkpoint without it does not count. It says which
object holds which tensor, from which byte to which: an entry.
"""

import io
import pickle
from typing import Any

import torch
from torch.distributed.checkpoint._nested_dict import set_element  # type: ignore[attr-defined]
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import ReadItem

from trainer.checkpoints.entries import Reading
from trainer.checkpoints.failures import Damaged
from trainer.storage import Storage, open_storage
from trainyard.models.layout import COMMIT_MARK


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


def reading(content: dict[str, Any], uri: str, metadata: Metadata) -> Reading:
    """What this process wants of a checkpoint, to go into the tensors of `content`, in place, and its other values.

    Only what `content` names, and of sharded tensors only this rank's part.
    """
    source, planner = _source(uri), _Planner()
    planner.set_up_planner(content, metadata)
    source.set_up_storage_reader(metadata, is_coordinator=True)
    return Reading(source, planner.finish_plan(planner.create_local_plan()), planner)


def _source(uri: str) -> FileSystemReader:
    if "://" not in uri:
        return FileSystemReader(uri)
    from trainer.checkpoints.s3 import s3_reader

    return s3_reader(uri)


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
