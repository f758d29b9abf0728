"""Reading by many ranks what several of them want: one reads an entry, checks it, and hands the others their parts.

So a checkpoint comes once from the storage, but for its smallest entries, whatever the layouts it was saved in and is
loaded on. Ranks agree on who reads what, balanced by bytes; then they go in rounds, in each of which every rank has at
most one entry to give.
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

from trainer.checkpoints.entries import Entry, Reading, Wanting, whole_tensor

_SMALL = 2**16  # bytes: to read less costs no more than to be handed it

Part = tuple[tuple[int, ...], tuple[int, ...]]  # where it begins in the entry's tensor, and how large it is


@dataclass(frozen=True)
class _Agreed:
    """The same on all ranks but `mine`."""

    mine: Wanting  # of what this rank wants, the shared entries
    wanted: list[dict[Entry, list[Part]]]  # by rank
    given: list[list[Entry]]  # by rank: what it reads, an entry a round

    @property
    def rounds(self) -> int:
        return max(map(len, self.given))


def read_together(reading: Reading, metadata: Metadata, group: dist.ProcessGroup) -> None:
    """By all ranks of the group; one that wants nothing has an empty plan. Raises where this rank's own part failed.

    Where another rank fails this one returns, as if all were well: `failures.together` tells it.
    """
    agreed = _agree(reading, metadata, group)
    rounds = _Rounds(reading, metadata, group, agreed)
    own = dist.get_rank(group)
    try:
        reading.read({entry: items for entry, items in reading.entries.items() if entry not in agreed.mine})
        reading.read({entry: agreed.mine[entry] for entry in agreed.given[own]}, rounds.give)
        rounds.finish()
    except _Over:
        return
    except BaseException:
        rounds.give_up()  # the others wait
        raise


class _Over(Exception):
    """Another rank has failed, and tells it."""


def _agree(reading: Reading, metadata: Metadata, group: dist.ProcessGroup) -> _Agreed:
    """Two collectives, or one where nothing is shared."""
    size = dist.get_world_size(group)
    # By their numbers: of a thousand ranks each has a thousand entries.
    known = sorted({Entry.of(info) for info in metadata.storage_data.values()})
    large = {
        entry: own
        for entry, own in reading.entries.items()
        if entry.length > _SMALL and all(item.type is LoadItemType.TENSOR for item in own)
    }
    numbers = np.flatnonzero(np.fromiter((entry in large for entry in known), dtype=bool, count=len(known)))
    all_numbers: list[list[int]] = [[]] * size
    dist.all_gather_object(all_numbers, numbers.tolist(), group=group)
    readers = Counter(number for each in all_numbers for number in each)
    shared = {known[number] for number, count in readers.items() if count > 1}
    mine = {entry: own for entry, own in large.items() if entry in shared}
    wanted: list[dict[Entry, list[Part]]] = [{}] * size
    if shared:
        parts = {entry: [(tuple(i.storage_offsets), tuple(i.lengths)) for i in own] for entry, own in mine.items()}
        dist.all_gather_object(wanted, parts, group=group)
    wanting = defaultdict[Entry, list[int]](list)
    for rank, parts_of_rank in enumerate(wanted):
        for entry in parts_of_rank:
            wanting[entry].append(rank)
    # In runs, as they lie in the files: what lies between two entries may come from S3 with them.
    enough = sum(entry.length for entry in wanting) / max(1, sum(map(bool, wanted)))
    given: list[list[Entry]] = [[] for _ in range(size)]
    load = [0] * size
    reader = -1
    for entry in sorted(wanting):
        if reader not in wanting[entry] or load[reader] >= enough:
            reader = min(wanting[entry], key=load.__getitem__)
        load[reader] += entry.length
        given[reader].append(entry)
    return _Agreed(mine, wanted, given)


class _Rounds:
    """In each, all ranks say first whether they have what they are to give."""

    def __init__(self, reading: Reading, metadata: Metadata, group: dist.ProcessGroup, agreed: _Agreed) -> None:
        self._reading, self._group, self._agreed = reading, group, agreed
        self._own = dist.get_rank(group)
        self._metadata = metadata
        self._done = 0
        self._over = False  # there will be no more of them
        self._failed: BaseException | None = None  # of this rank

    def give(self, content: memoryview, items: list[ReadItem], name: str) -> None:
        """This round's entry, as it was read. Called in the order of entries, by one thread."""
        self._round(lambda: whole_tensor(content, name))

    def finish(self) -> None:
        """The rounds in which other ranks give, and this one does not."""
        while self._done < self._agreed.rounds:
            self._round(None)

    def give_up(self) -> None:
        """Tell the others that this rank won't give."""
        if self._done < self._agreed.rounds and not self._over:
            self._all_have(False)

    def _round(self, make: Callable[[], Tensor] | None) -> None:
        if self._failed:
            raise self._failed  # of the entry before this one, which was already on its way
        try:
            whole = make() if make else None
            sent, coming = self._sent(whole), self._coming()
            if not self._all_have(True):
                raise _Over()
            self._over = True  # where the exchange itself fails, nobody listens
            self._exchange(sent, coming)
            self._done, self._over = self._done + 1, False
            self._fill(whole, coming)
        except BaseException as error:
            self._failed = error
            raise

    def _all_have(self, have: bool) -> bool:
        self._over = True  # so it is where this fails
        failed = torch.tensor([0 if have else 1])
        dist.all_reduce(failed, dist.ReduceOp.MAX, group=self._group)
        self._over = bool(failed.item())
        return not self._over

    def _sent(self, whole: Tensor | None) -> list[tuple[int, Tensor]]:
        """The parts of this round's entry that others want, and who."""
        if whole is None:
            return []
        entry = self._agreed.given[self._own][self._done]
        return [
            (rank, narrow_tensor_by_index(whole, offsets, lengths).contiguous().flatten().view(torch.uint8))
            for rank, wanted in enumerate(self._agreed.wanted)
            if rank != self._own
            for offsets, lengths in wanted.get(entry, [])
        ]

    def _coming(self) -> list[tuple[int, ReadItem, Tensor]]:
        """Room for the parts that this rank gets in this round, and from whom."""
        return [
            (rank, item, torch.empty(self._bytes(item), dtype=torch.uint8))
            for rank, entries in enumerate(self._agreed.given)
            if rank != self._own and self._done < len(entries)
            for item in self._agreed.mine.get(entries[self._done], [])
        ]

    def _exchange(self, sent: list[tuple[int, Tensor]], coming: list[tuple[int, ReadItem, Tensor]]) -> None:
        works = [dist.irecv(part, group=self._group, group_src=rank) for rank, _, part in coming]
        works += [dist.isend(part, group=self._group, group_dst=rank) for rank, part in sent]
        for work in works:
            assert work is not None, "this rank is in the group"
            work.wait()

    def _fill(self, whole: Tensor | None, coming: list[tuple[int, ReadItem, Tensor]]) -> None:
        if whole is not None:
            for item in self._agreed.mine[self._agreed.given[self._own][self._done - 1]]:
                self._reading.take(item, narrow_tensor_by_index(whole, item.storage_offsets, item.lengths))
        for _, item, received in coming:
            self._reading.take(item, received.view(self._type(item)).reshape(tuple(item.lengths)))

    def _bytes(self, item: ReadItem) -> int:
        return prod(item.lengths) * self._type(item).itemsize

    def _type(self, item: ReadItem) -> torch.dtype:
        entry = self._metadata.state_dict_metadata[item.storage_index.fqn]
        assert isinstance(entry, TensorStorageMetadata)
        return entry.properties.dtype
