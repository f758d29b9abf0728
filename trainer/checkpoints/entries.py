"""Reads a checkpoint's entries, each once and whole, and checks them on the way into the tensors that want a part.

An entry is a zip archive as torch.save makes it, with a CRC-32 of its content, which torch.load does not look at: a
flipped byte would become a weight. Here it is looked at.
"""

import io
import struct
import zipfile
import zlib
from concurrent.futures import Future as Submitted
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import IO, Any, cast

import torch
from torch import Tensor
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

from trainer.checkpoints.failures import Damaged

_LOCAL_HEADER = 30  # bytes of a zip entry's own header before its name


class Checking:
    """For readers of the library: reads each entry once, whole, checks it, and copies into all that want a part."""

    fs: Any
    path: Any
    storage_data: dict[Any, Any]
    metadata: Metadata

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return self.metadata

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> "Future[None]":
        wanted: dict[str, dict[tuple[int, int], list[ReadItem]]] = {}
        for item in plan.items:
            entry = self.storage_data[item.storage_index]
            wanted.setdefault(entry.relative_path, {}).setdefault((entry.offset, entry.length), []).append(item)
        # Two buffers for all: fresh memory costs as much as a copy. While one is read into, a thread checks the other.
        longest = max((length for entries in wanted.values() for _, length in entries), default=0)
        buffers = [torch.empty(longest, dtype=torch.uint8).numpy().data for _ in range(2)]
        checked: list[Submitted[None] | None] = [None, None]
        turns = count()
        with ThreadPoolExecutor(1, thread_name_prefix="checkpoint") as thread:
            for name, entries in wanted.items():
                with self.fs.create_stream(self.fs.concat_path(self.path, name), "rb") as stream:
                    for (offset, length), items in sorted(entries.items()):
                        turn = next(turns) % 2
                        if (last := checked[turn]) is not None:
                            last.result()
                        stream.seek(offset)
                        _read(stream, content := buffers[turn][:length], name)
                        checked[turn] = thread.submit(_hand_over, content, items, planner, name)
            for last in checked:
                if last is not None:
                    last.result()
        done: Future[None] = Future()
        done.set_result(None)
        return done


def _read(stream: Any, content: memoryview, name: str) -> None:
    done = 0
    while done < len(content):
        count = stream.readinto(content[done:])
        if not count:
            raise Damaged(f"{name} ends too early")
        done += count


def _hand_over(content: memoryview, items: list[ReadItem], planner: LoadPlanner, name: str) -> None:
    data = _checked(content, name)
    tensor: Tensor | None = None
    for item in items:
        if item.type is LoadItemType.BYTE_IO:
            planner.load_bytes(item, io.BytesIO(content))
            continue
        tensor = _tensor(content, data) if tensor is None else tensor
        target = planner.resolve_tensor(item).detach()
        target.copy_(narrow_tensor_by_index(tensor, item.storage_offsets, item.lengths))
        planner.commit_tensor(item, target)


def _checked(content: memoryview, name: str) -> tuple[int, int]:
    """Where the numbers of its tensor stand, first byte and size. Raises Damaged unless all of it is as written."""
    found = (0, 0)
    try:
        with zipfile.ZipFile(Memory(content)) as archive:
            for record in archive.infolist():
                header = content[record.header_offset : record.header_offset + _LOCAL_HEADER]
                name_length, extra_length = struct.unpack("<HH", header[26:30])
                start = record.header_offset + _LOCAL_HEADER + name_length + extra_length
                if zlib.crc32(content[start : start + record.file_size]) != record.CRC:
                    raise Damaged(f"{name} was changed: {record.filename} is not what its CRC-32 says")
                if record.filename.endswith("/data/0"):
                    found = (start, record.file_size)
    except (zipfile.BadZipFile, struct.error, ValueError, NotImplementedError) as error:
        raise Damaged(f"{name} can't be read ({error})") from error
    return found


def _tensor(content: memoryview, data: tuple[int, int]) -> Tensor:
    """What torch.save wrote, in the memory where it stands."""
    start, size = data
    with torch.serialization.skip_data():
        shell: Tensor = torch.load(cast(IO[bytes], Memory(content)), map_location="cpu", weights_only=True)
    if not size:
        return shell
    numbers = torch.frombuffer(content, dtype=torch.uint8, count=size, offset=start).untyped_storage()
    return torch.empty(0, dtype=shell.dtype).set_(numbers, shell.storage_offset(), shell.size(), shell.stride())


class Memory(io.RawIOBase):
    """Bytes in memory as a file to read, without a copy of them all."""

    def __init__(self, content: memoryview) -> None:
        self._content, self._at = content, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        count = max(0, min(len(target), len(self._content) - self._at))
        target[:count] = self._content[self._at : self._at + count]
        self._at += count
        return count

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(0, (0, self._at, len(self._content))[whence] + offset)
        return self._at

    def tell(self) -> int:
        return self._at
