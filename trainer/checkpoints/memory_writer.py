"""Writes copies of the state into host memory: what each rank copies, and what it sends to the next node."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.checkpoints.memory_file import FileMetadata, MemoryFile, Part, content_size
from trainer.checkpoints.state import State, named_tensors, rng_state
from trainer.local_tensor import local_tensor

GENERATORS = "generators/"  # prefix of the names of their states
SLOTS = (0, 1)
_CHUNK_BYTES = 256 * 2**20  # of a message between nodes


class CopyPlan:
    """What each rank copies and sends. All ranks have the same plan."""

    def __init__(self, state: State, shard: int, group: dist.ProcessGroup, ranks_per_node: int) -> None:
        self.shard, self._ranks_per_node = shard, ranks_per_node
        self.parts = state_parts(state)
        self._world = dist.get_world_size(group)
        sizes: list[tuple[int, dict[Part, int]]] = [(0, {})] * self._world
        local = (shard, {part: content_size(tensors) for part, tensors in self.parts.items()})
        dist.all_gather_object(sizes, local, group=group)
        self._shards, self._sizes = [each for each, _ in sizes], [each for _, each in sizes]

    def own_sizes(self, rank: int) -> dict[Part, int]:
        """Return the sizes of the files that a rank writes: on each node, the first rank of a shard writes that."""
        start = rank - rank % self._ranks_per_node
        is_first = self._shards[rank] not in self._shards[start:rank]
        return {part: size for part, size in self._sizes[rank].items() if part == "rank" or is_first}

    def sent_sizes(self, rank: int) -> dict[Part, int]:
        """Return the sizes of the files that a rank sends to the next node: those that no other node has."""
        nodes = {
            other // self._ranks_per_node for other, shard in enumerate(self._shards) if shard == self._shards[rank]
        }
        if self._world == self._ranks_per_node:
            return {}
        return {part: size for part, size in self.own_sizes(rank).items() if part == "rank" or len(nodes) == 1}

    def sender(self, rank: int) -> int:
        """Return the rank on the previous node from which a rank receives."""
        return (rank - self._ranks_per_node) % self._world

    def receiver(self, rank: int) -> int:
        """Return the rank on the next node to which a rank sends."""
        return (rank + self._ranks_per_node) % self._world

    def bytes_of_node(self, node: int) -> int:
        """Return the bytes of all files on a node."""
        ranks = range(node * self._ranks_per_node, (node + 1) * self._ranks_per_node)
        sizes = [size for rank in ranks for size in self.own_sizes(rank).values()]
        sizes += [size for rank in ranks for size in self.sent_sizes(self.sender(rank)).values()]
        return len(SLOTS) * sum(sizes)


class CopyWriter:
    """The allocated files of one rank, and the copies into them. `loaded`: step that the first copy must keep."""

    def __init__(
        self,
        plan: CopyPlan,
        own: Mapping[Part, list[MemoryFile]],
        peer: Mapping[Part, list[MemoryFile]],
        loaded: int | None,
    ) -> None:
        self._plan, self._own, self._peer = plan, own, peer
        self._next = {file[0].path: _first_slot(file, loaded) for file in (*own.values(), *peer.values())}

    def start(self, state: State, group: dist.ProcessGroup) -> tuple[Callable[[], None], Callable[[], None]]:
        """Return two functions for a thread: one copies the state, the other completes and sends the files."""
        values, rank, world = state.values(), dist.get_rank(group), dist.get_world_size(group)
        step = state.progress.step
        parts = self._plan.parts
        buffers = {name: each.clone() for name, each in parts["rank"].items()}  # the next forward pass changes them
        content: dict[Part, dict[str, Tensor]] = {"rank": buffers | _generators(), "shard": parts["shard"]}
        files = {part: self._take(slots) for part, slots in self._own.items()}
        staging = {part: file.stage(content[part]) for part, file in files.items()}
        stored: dict[Part, Any] = {}

        def copy() -> None:
            stored.update({part: stage() for part, stage in staging.items()})

        def commit() -> None:
            committed: dict[Part, FileMetadata] = {}
            try:
                for part in stored:
                    file, owner = files[part], rank if part == "rank" else self._plan.shard
                    metadata = FileMetadata(part, owner, step, world, file.size, file.checksum(), stored[part], values)
                    file.commit(metadata)
                    committed[part] = metadata
            finally:  # the next node waits
                self._send(files, committed, rank, group)

        return copy, commit

    def _take(self, slots: list[MemoryFile]) -> MemoryFile:
        slot = self._next[slots[0].path]
        self._next[slots[0].path] = 1 - slot
        return slots[slot]

    def _send(
        self,
        files: Mapping[Part, MemoryFile],
        committed: Mapping[Part, FileMetadata],
        rank: int,
        group: dist.ProcessGroup,
    ) -> None:
        """Send what no other node has to the next node, and receive from the previous one.

        `committed`: the metadata of the complete files. Others are not sent.
        """
        sent = list(self._plan.sent_sizes(rank))
        to, from_ = self._plan.receiver(rank), self._plan.sender(rank)
        content = [committed[part].to_bytes() if part in committed else b"" for part in sent]
        lengths = torch.tensor([len(each) for each in content], dtype=torch.int64)
        received_lengths = torch.zeros(len(self._peer), dtype=torch.int64)
        exchange_tensors([(to, lengths)] if sent else [], [(from_, received_lengths)] if self._peer else [], group)
        outgoing, incoming, received = [], [], []
        for part, metadata in zip(sent, content, strict=True):
            if metadata:
                outgoing += [(to, torch.frombuffer(bytearray(metadata), dtype=torch.uint8)), (to, files[part].memory)]
        for length, slots in zip(received_lengths.tolist(), self._peer.values(), strict=True):
            file = self._take(slots)
            file.clear()
            if length:
                metadata_bytes = torch.empty(length, dtype=torch.uint8)
                incoming += [(from_, metadata_bytes), (from_, file.memory)]
                received.append((file, metadata_bytes))
        exchange_tensors(outgoing, incoming, group)
        for file, metadata_bytes in received:
            received_metadata = FileMetadata.from_bytes(metadata_bytes.numpy().tobytes())
            if file.checksum() == received_metadata.checksum:
                file.commit(received_metadata)


def _first_slot(slots: Sequence[MemoryFile], loaded: int | None) -> int:
    """Return the slot that is written first: not that with the step from which the run has resumed."""
    metadata = slots[0].metadata
    return 1 if metadata is not None and metadata.step == loaded else 0


def state_parts(state: State) -> dict[Part, dict[str, Tensor]]:
    """Return the tensors of this rank by part: generators and buffers, and the tensors that replicas may share."""
    tensors = {"/".join(path): local_tensor(tensor) for path, tensor in named_tensors(state.tensors())}
    addresses = {local_tensor(buffer).untyped_storage().data_ptr() for buffer in state.model.buffers()}
    buffers = {name for name, each in tensors.items() if each.untyped_storage().data_ptr() in addresses}
    own = {name: each for name, each in tensors.items() if name in buffers}
    shard = {name: each for name, each in tensors.items() if name not in buffers}
    return {"rank": _generators() | own, "shard": shard}


def _generators() -> dict[str, Tensor]:
    return {f"{GENERATORS}{device}": each for device, each in rng_state().items()}


def exchange_tensors(
    outgoing: Sequence[tuple[int, Tensor]], incoming: Sequence[tuple[int, Tensor]], group: dist.ProcessGroup
) -> None:
    """Send tensors to ranks and receive tensors from ranks, in parallel, in the order of each pair of ranks."""
    works = [dist.irecv(chunk, group=group, group_src=rank) for rank, tensor in incoming for chunk in _chunks(tensor)]
    works += [dist.isend(chunk, group=group, group_dst=rank) for rank, tensor in outgoing for chunk in _chunks(tensor)]
    for work in works:
        assert work is not None, "this rank is in the group"
        work.wait()


def _chunks(tensor: Tensor) -> tuple[Tensor, ...]:
    return torch.split(tensor, max(1, _CHUNK_BYTES // tensor.element_size()))
