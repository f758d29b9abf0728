"""Reads entries that several ranks need on one of them, which verifies each entry and sends the others their parts.

So each byte of a checkpoint is read from the storage once, except for the smallest entries, for any layouts of saving
and loading. The ranks agree on which rank reads which entry, balanced by bytes. Then they exchange the entries in
rounds; in each round every rank sends the parts of at most one entry.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, ReadItem

from trainer.checkpoints.entries import CheckpointRead, Entry, ItemsByEntry, verified_tensor

_MIN_SHARED_BYTES = 2**16  # to read at most this many bytes costs no more than to receive them

Part = tuple[tuple[int, ...], tuple[int, ...]]  # offsets in the entry's tensor, and lengths


@dataclass(frozen=True)
class _Agreement:
    """Which rank reads and which ranks need each shared entry. It is the same on all ranks except `local`."""

    local: ItemsByEntry  # the shared entries that this rank needs
    needed: list[dict[Entry, list[Part]]]  # by rank
    assigned: list[list[Entry]]  # by rank: the entries that it reads, one per round

    @property
    def rounds(self) -> int:
        return max(map(len, self.assigned))


def read_shared(read: CheckpointRead, metadata: Metadata, group: dist.ProcessGroup) -> None:
    """Read the entries of all ranks of the group. A rank that needs no entries has an empty plan.

    Raises if this rank fails. If another rank fails, this rank returns normally: `failures.on_all_ranks` then raises
    the failure of that rank on all ranks.
    """
    agreement = _agree(read, metadata, group)
    rounds = _Rounds(read, metadata, group, agreement)
    rank = dist.get_rank(group)
    try:
        read.read({entry: items for entry, items in read.entries.items() if entry not in agreement.local})
        read.read({entry: agreement.local[entry] for entry in agreement.assigned[rank]}, rounds.send)
        rounds.finish()
    except _OtherRankError:
        return
    except BaseException:
        rounds.abort()  # the other ranks wait
        raise


class _OtherRankError(Exception):
    """Another rank has failed and reports the failure."""


def _agree(read: CheckpointRead, metadata: Metadata, group: dist.ProcessGroup) -> _Agreement:
    """Agree on the readers of the shared entries, by two collectives, or by one if no entry is shared."""
    world_size = dist.get_world_size(group)
    # Entries are exchanged as numbers: each of a thousand ranks may have a thousand entries.
    entries = sorted({Entry.from_storage_info(info) for info in metadata.storage_data.values()})
    large = {
        entry: items
        for entry, items in read.entries.items()
        if entry.length > _MIN_SHARED_BYTES and all(item.type is LoadItemType.TENSOR for item in items)
    }
    numbers = np.flatnonzero(np.fromiter((entry in large for entry in entries), dtype=bool, count=len(entries)))
    all_numbers: list[list[int]] = [[]] * world_size
    dist.all_gather_object(all_numbers, numbers.tolist(), group=group)
    rank_counts = Counter(number for rank_numbers in all_numbers for number in rank_numbers)
    shared = {entries[number] for number, count in rank_counts.items() if count > 1}
    local = {entry: items for entry, items in large.items() if entry in shared}
    needed: list[dict[Entry, list[Part]]] = [{}] * world_size
    if shared:
        parts = {
            entry: [(tuple(item.storage_offsets), tuple(item.lengths)) for item in items]
            for entry, items in local.items()
        }
        dist.all_gather_object(needed, parts, group=group)
    return _Agreement(local, needed, _assign_readers(needed))


def _assign_readers(needed: list[dict[Entry, list[Part]]]) -> list[list[Entry]]:
    """Assign each shared entry to one of the ranks that need it, balanced by bytes."""
    ranks_of = defaultdict[Entry, list[int]](list)
    for rank, entries in enumerate(needed):
        for entry in entries:
            ranks_of[entry].append(rank)
    # A rank gets consecutive entries of the files, because S3 may return the bytes between two entries with them.
    target_bytes = sum(entry.length for entry in ranks_of) / max(1, sum(map(bool, needed)))
    assigned: list[list[Entry]] = [[] for _ in needed]
    load = [0] * len(needed)
    reader = -1
    for entry in sorted(ranks_of):
        if reader not in ranks_of[entry] or load[reader] >= target_bytes:
            reader = min(ranks_of[entry], key=load.__getitem__)
        load[reader] += entry.length
        assigned[reader].append(entry)
    return assigned


class _Rounds:
    """Exchanges the shared entries in rounds. In each round all ranks first report whether they have their entry."""

    def __init__(
        self, read: CheckpointRead, metadata: Metadata, group: dist.ProcessGroup, agreement: _Agreement
    ) -> None:
        self._read, self._group, self._agreement = read, group, agreement
        self._rank = dist.get_rank(group)
        self._metadata = metadata
        self._completed = 0  # rounds
        self._ended = False  # no further rounds follow
        self._failure: BaseException | None = None  # of this rank

    def send(self, content: memoryview, items: list[ReadItem], name: str) -> None:
        """Run the next round with the entry that was read. One thread calls it, in the order of entries."""
        self._run(lambda: verified_tensor(content, name))

    def finish(self) -> None:
        """Run the remaining rounds, in which this rank only receives."""
        while self._completed < self._agreement.rounds:
            self._run(None)

    def abort(self) -> None:
        """Report to the other ranks that this rank has failed."""
        if self._completed < self._agreement.rounds and not self._ended:
            self._all_ready(False)

    def _run(self, load: Callable[[], Tensor] | None) -> None:
        if self._failure:
            raise self._failure  # of the previous entry: this entry was already read ahead
        try:
            tensor = load() if load else None
            outgoing, incoming = self._outgoing(tensor), self._incoming()
            if not self._all_ready(True):
                raise _OtherRankError()
            self._ended = True  # if the exchange itself fails, no rank receives a report
            self._exchange(outgoing, incoming)
            self._completed, self._ended = self._completed + 1, False
            self._fill(tensor, incoming)
        except BaseException as error:
            self._failure = error
            raise

    def _all_ready(self, ready: bool) -> bool:
        self._ended = True  # also if the collective fails
        failed = torch.tensor([0 if ready else 1])
        dist.all_reduce(failed, dist.ReduceOp.MAX, group=self._group)
        self._ended = bool(failed.item())
        return not self._ended

    def _outgoing(self, tensor: Tensor | None) -> list[tuple[int, Tensor]]:
        """Return the parts of this round's entry that other ranks need, each with the rank."""
        if tensor is None:
            return []
        entry = self._agreement.assigned[self._rank][self._completed]
        return [
            (rank, narrow_tensor_by_index(tensor, offsets, lengths).contiguous().flatten().view(torch.uint8))
            for rank, needed in enumerate(self._agreement.needed)
            if rank != self._rank
            for offsets, lengths in needed.get(entry, [])
        ]

    def _incoming(self) -> list[tuple[int, ReadItem, Tensor]]:
        """Allocate buffers for the parts that this rank receives in this round, each with the sending rank."""
        return [
            (rank, item, torch.empty(self._size_bytes(item), dtype=torch.uint8))
            for rank, entries in enumerate(self._agreement.assigned)
            if rank != self._rank and self._completed < len(entries)
            for item in self._agreement.local.get(entries[self._completed], [])
        ]

    def _exchange(self, outgoing: list[tuple[int, Tensor]], incoming: list[tuple[int, ReadItem, Tensor]]) -> None:
        works = [dist.irecv(part, group=self._group, group_src=rank) for rank, _, part in incoming]
        works += [dist.isend(part, group=self._group, group_dst=rank) for rank, part in outgoing]
        for work in works:
            assert work is not None, "this rank is in the group"
            work.wait()

    def _fill(self, tensor: Tensor | None, incoming: list[tuple[int, ReadItem, Tensor]]) -> None:
        if tensor is not None:
            for item in self._agreement.local[self._agreement.assigned[self._rank][self._completed - 1]]:
                source = narrow_tensor_by_index(tensor, item.storage_offsets, item.lengths)
                self._read.copy_to_target(item, source)
        for _, item, received in incoming:
            self._read.copy_to_target(item, received.view(self._dtype(item)).reshape(tuple(item.lengths)))

    def _size_bytes(self, item: ReadItem) -> int:
        return prod(item.lengths) * self._dtype(item).itemsize

    def _dtype(self, item: ReadItem) -> torch.dtype:
        entry = self._metadata.state_dict_metadata[item.storage_index.fqn]
        assert isinstance(entry, TensorStorageMetadata)
        return entry.properties.dtype
