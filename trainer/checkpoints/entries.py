"""A checkpoint's entries, each read once and whole, and checked on the way into the tensors that want a part.

An entry is a zip archive as torch.save makes it, with a CRC-32 of its content, which torch.load does not look at: a
flipped byte would become a weight. Here it is looked at.
"""

import io
import struct
import zipfile
import zlib
from collections.abc import Callable
from concurrent.futures import Future as Submitted
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import count, groupby
from typing import IO, Any, cast

import torch
from torch import Tensor
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem

from trainer.checkpoints.failures import Damaged

_LOCAL_HEADER = 30  # bytes of a zip entry's own header before its name


@dataclass(frozen=True, order=True)
class Entry:
    """Where one of a checkpoint's tensors or values, or a part of it, stands."""

    file: str
    offset: int  # bytes
    length: int

    @classmethod
    def of(cls, info: Any) -> "Entry":
        return cls(info.relative_path, info.offset, info.length)


Wanting = dict[Entry, list[ReadItem]]  # what is read, and who wants a part of it
Deliver = Callable[[memoryview, list[ReadItem], str], None]


class Reading:
    """What one process wants of a checkpoint, and where it goes."""

    def __init__(self, source: Any, plan: LoadPlan, planner: LoadPlanner) -> None:
        """`source`: one of the library's readers, set up."""
        self._source, self._plan, self._planner = source, plan, planner
        found: dict[Entry, list[ReadItem]] = {}
        for item in plan.items:
            found.setdefault(Entry.of(source.storage_data[item.storage_index]), []).append(item)
        self.entries: Wanting = dict(sorted(found.items()))  # in the order in which they are read

    def read(self, entries: Wanting | None = None, deliver: Deliver | None = None) -> None:
        """All entries, or these, in their order, each once. `deliver` gets it, and the items that want a part of it, by
        one thread; without it, they are filled. Raises Damaged, OSError."""
        entries = self.entries if entries is None else entries
        # The connector wants to know which bytes will be read, and takes each once.
        self._source.prepare_local_plan(replace(self._plan, items=[wanting[0] for wanting in entries.values()]))
        # Two buffers for all: fresh memory costs as much as a copy. While one is read into, a thread checks the other.
        longest = max((entry.length for entry in entries), default=0)
        buffers = [torch.empty(longest, dtype=torch.uint8).numpy().data for _ in range(2)]
        delivered: list[Submitted[None] | None] = [None, None]
        turns = count()
        with ThreadPoolExecutor(1, thread_name_prefix="checkpoint") as thread:
            for name, of_file in groupby(entries.items(), key=lambda each: each[0].file):
                with self._source.fs.create_stream(self._source.fs.concat_path(self._source.path, name), "rb") as file:
                    for entry, wanting in of_file:
                        turn = next(turns) % 2
                        if (last := delivered[turn]) is not None:
                            last.result()
                        file.seek(entry.offset)
                        _read(file, content := buffers[turn][: entry.length], name)
                        delivered[turn] = thread.submit(deliver or self._fill, content, wanting, name)
            for last in delivered:
                if last is not None:
                    last.result()

    def take(self, item: ReadItem, part: Tensor) -> None:
        """Fill what the item is for."""
        target = self._planner.resolve_tensor(item).detach()
        target.copy_(part)
        self._planner.commit_tensor(item, target)

    def _fill(self, content: memoryview, items: list[ReadItem], name: str) -> None:
        data = _checked(content, name)
        tensor: Tensor | None = None
        for item in items:
            if item.type is LoadItemType.BYTE_IO:
                self._planner.load_bytes(item, io.BytesIO(content))
                continue
            tensor = _tensor(content, data) if tensor is None else tensor
            self.take(item, narrow_tensor_by_index(tensor, item.storage_offsets, item.lengths))


def whole_tensor(content: memoryview, name: str) -> Tensor:
    """The tensor of an entry, in the memory where it stands. Raises Damaged unless it is as written."""
    return _tensor(content, _checked(content, name))


def _read(stream: Any, content: memoryview, name: str) -> None:
    done = 0
    while done < len(content):
        count = stream.readinto(content[done:])
        if not count:
            raise Damaged(f"{name} ends too early")
        done += count


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
