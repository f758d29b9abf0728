"""Copies of the newest state in the host memory of the nodes, from which the next attempt resumes.

Each rank copies its own part of the state (random generators, buffers) into a file in its node's folder. On each node,
one rank also copies each shard: the tensors that ranks may share. With several nodes, a part that no other node has is
also sent to the next node. Two files alternate, so that a complete file exists at any time. When an attempt starts, all
ranks agree on the newest step of which the nodes together have all parts, and the nodes exchange the missing parts.
"""

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.checkpoints.failures import CollectiveError, DamagedCheckpointError, on_all_ranks
from trainer.checkpoints.memory_file import MemoryFile, Part, metadata_file, read_metadata, read_tensors
from trainer.checkpoints.memory_writer import GENERATORS, SLOTS, CopyPlan, CopyWriter, exchange_tensors, state_parts
from trainer.checkpoints.state import State, restore_rng_state
from trainer.failures.watchdog import process_group_timeout
from trainer.settings import Environment
from trainyard.config.training import TrainerConfig
from trainyard.config.training.config import CheckpointConfig
from trainyard.host_memory import MEMINFO, read_sizes

# Shares of the available memory of a node, and of the free space of its tmpfs, which the copies may use.
MEMORY_SHARE, TMPFS_SHARE = 0.5, 0.75
# By default training waits for the copies for at most this share of its time.
STALL_SHARE = 0.02
log = logging.getLogger(__name__)

Key = tuple[Part, int]
"""What a file has, and its owner."""


@dataclass(frozen=True)
class _Entry:
    """A complete file on a node. `metadata_bytes`: length of its metadata."""

    key: Key
    step: int
    path: str
    size: int
    metadata_bytes: int


@dataclass(frozen=True)
class _Source:
    """Where a rank finds a file. `receiver`: the rank that receives it for its node; None: the node has it."""

    entry: _Entry
    holder: int
    receiver: int | None


class MemoryCopies:
    """Copies of the state of one rank in `folder`, that of its node. All ranks call every method at the same step.

    `group` is a gloo group of all ranks that nothing else uses: a thread copies during training.
    """

    def __init__(
        self, folder: Path, group: dist.ProcessGroup, config: CheckpointConfig, local_rank: int, ranks_per_node: int
    ) -> None:
        self._folder, self._group, self._config = folder, group, config
        self._rank, self._world = dist.get_rank(group), dist.get_world_size(group)
        self._local_rank, self._ranks_per_node = local_rank, ranks_per_node
        self._thread = ThreadPoolExecutor(1, "memory copy")
        self._copies: CopyWriter | None = None  # None: they are off
        self._pending: Future[None] | None = None
        self._staged: Future[None] | None = None
        self._due_at = self._stall_seconds = self._started_at = 0.0
        self._loaded: int | None = None
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def load(self, state: State, newest: int | None) -> int | None:
        """Load the newest step that is complete in memory into `state`, unless it is older than `newest`.

        Returns the step; None if there is none. Content that is damaged is skipped, with a warning.
        """
        inventory: list[tuple[int, list[_Entry]]] = [(0, [])] * self._world
        dist.all_gather_object(inventory, (self._shard(state), list(self._list_files())), group=self._group)
        shards = [shard for shard, _ in inventory]
        steps = {entry.step for _, entries in inventory for entry in entries}
        for step in sorted((step for step in steps if newest is None or step >= newest), reverse=True):
            sources = self._find_sources([entries for _, entries in inventory], shards, step)
            if sources is None:
                continue
            try:
                self._load_step(state, sources)
            except CollectiveError as error:
                if self._rank == 0:
                    log.warning("the copy of step %d in host memory is not used: %s", step, error)
                continue
            self._loaded = step
            return step
        return None

    def prepare(self, state: State) -> None:
        """Allocate the files, or switch the copies off if they do not fit. Call it after a load."""
        plan = CopyPlan(state, self._shard(state), self._group, self._ranks_per_node)
        available = self._available_bytes()
        fits: list[tuple[bool, float, float]] = [(False, 0.0, 0.0)] * self._world
        needed = plan.bytes_of_node(self._rank // self._ranks_per_node)
        dist.all_gather_object(fits, (needed <= available, needed / 2**30, available / 2**30), group=self._group)
        missing = next((each for each in fits if not each[0]), None)
        if missing is not None:
            if self._rank == 0:
                text = "no copies of the state in host memory: a node needs %.2f GiB, and %.2f GiB may be used"
                log.warning(text, *missing[1:])
            self._delete_files()
            return
        try:
            self._copies = on_all_ranks(lambda: self._allocate(plan), self._group)
        except CollectiveError as error:
            if self._rank == 0:
                log.warning("no copies of the state in host memory: %s", error)
            self._delete_files()

    def is_due(self, step: int) -> bool:
        """Return whether a copy is due at the end of this step. Rank 0 decides; other ranks return False."""
        if self._copies is None or self._rank:
            return False
        if self._config.memory_interval_steps is not None:
            return step % self._config.memory_interval_steps == 0
        return time.monotonic() >= self._due_at

    @property
    def is_busy(self) -> bool:
        """Whether this rank still copies a previous step."""
        return self._pending is not None and not self._pending.done()

    def save(self, state: State) -> None:
        """Start to copy the current state. No rank may be busy. The state may change after `wait_for_staging`."""
        assert self._copies is not None, "a copy is due only if the copies are on"
        self._record_previous()
        self._started_at, self._stall_seconds = time.monotonic(), 0.0
        copy, commit = self._copies.start(state, self._group)
        self._staged = self._thread.submit(copy)
        self._pending = self._thread.submit(commit)
        self._stall_seconds = time.monotonic() - self._started_at

    def wait_for_staging(self) -> None:
        """Wait until the copy is complete. Call it before weights or optimizer state change."""
        if self._staged is not None:
            started_at = time.monotonic()
            with suppress(Exception):  # `_record_previous` reports it
                self._staged.result()
            self._staged = None
            self._stall_seconds += time.monotonic() - started_at
            self._due_at = self._started_at + self._stall_seconds / STALL_SHARE

    def close(self) -> None:
        """Wait for the current copy."""
        self._thread.shutdown()

    def _record_previous(self) -> None:
        if self._pending is not None:
            try:
                self._pending.result()
            except Exception as error:  # the next copy may succeed, and there are the checkpoints
                log.warning("the state was not copied to host memory: %s", error)

    def _shard(self, state: State) -> int:
        """Return the lowest rank with the same tensors as this rank."""
        return min(dist.get_process_group_ranks(state.replicas)) if state.replicas else self._rank

    def _list_files(self) -> Iterator[_Entry]:
        for path in self._own_paths():
            metadata = read_metadata(path)
            if metadata is not None and metadata.world_size == self._world:
                length = metadata_file(path).stat().st_size
                yield _Entry((metadata.part, metadata.owner), metadata.step, str(path), metadata.size, length)

    def _own_paths(self) -> list[Path]:
        """Return the paths of all files that this rank writes."""
        return [
            _file_path(self._folder, kind, self._local_rank, part, slot)
            for kind in ("own", "peer")
            for part in ("rank", "shard")
            for slot in SLOTS
        ]

    def _delete_files(self) -> None:
        for path in self._own_paths():
            metadata_file(path).unlink(missing_ok=True)
            path.unlink(missing_ok=True)

    def _find_sources(
        self, files: Sequence[Sequence[_Entry]], shards: Sequence[int], step: int
    ) -> dict[int, dict[Key, _Source]] | None:
        """Return rank -> part that it needs -> source of the part; None if a part is on no node."""
        holders: dict[Key, list[tuple[int, _Entry]]] = {}
        for rank, entries in enumerate(files):
            for entry in entries:
                if entry.step == step:
                    holders.setdefault(entry.key, []).append((rank, entry))
        sources: dict[int, dict[Key, _Source]] = {}
        receivers: dict[tuple[int, Key], int] = {}
        for rank in range(self._world):
            node = rank // self._ranks_per_node
            needed: tuple[Key, Key] = (("rank", rank), ("shard", shards[rank]))
            for key in needed:
                if key not in holders:
                    return None
                on_node = [each for each in holders[key] if each[0] // self._ranks_per_node == node]
                holder, entry = (on_node or holders[key])[0]
                receiver = None if on_node else receivers.setdefault((node, key), rank)
                sources.setdefault(rank, {})[key] = _Source(entry, holder, receiver)
        return sources

    def _load_step(self, state: State, sources: Mapping[int, Mapping[Key, _Source]]) -> None:
        """Load the files at their sources. Raises CollectiveError on all ranks if a file can't be used."""
        received = {
            key: source.entry.size for key, source in sources[self._rank].items() if source.receiver == self._rank
        }
        try:
            files = on_all_ranks(
                lambda: {key: MemoryFile(_received_path(self._folder, key), size) for key, size in received.items()},
                self._group,
            )
            received_metadata = self._exchange(sources, files)
            on_all_ranks(
                lambda: [metadata_file(files[key].path).write_bytes(each) for key, each in received_metadata.items()],
                self._group,
            )
            loaded = on_all_ranks(lambda: self._read(state, sources[self._rank]), self._group)
        finally:
            for key in received:
                path = _received_path(self._folder, key)
                path.unlink(missing_ok=True)
                metadata_file(path).unlink(missing_ok=True)
        with torch.no_grad():
            for live, stored in loaded.tensors:
                live.copy_(stored)
        restore_rng_state(loaded.generators)
        state.restore_values(loaded.values)

    def _exchange(
        self, sources: Mapping[int, Mapping[Key, _Source]], files: Mapping[Key, MemoryFile]
    ) -> dict[Key, bytes]:
        """Send files to the nodes without them, and receive `files`; return the metadata of these."""
        outgoing: list[tuple[int, Tensor]] = []
        incoming: list[tuple[int, Tensor]] = []
        received: dict[Key, Tensor] = {}
        for rank, needed in sources.items():
            for key, source in needed.items():
                if source.receiver != rank:
                    continue
                if source.holder == self._rank:
                    path = Path(source.entry.path)
                    metadata = torch.frombuffer(bytearray(metadata_file(path).read_bytes()), dtype=torch.uint8)
                    content = torch.from_file(str(path), shared=True, size=source.entry.size, dtype=torch.uint8)
                    outgoing += [(rank, metadata), (rank, content)]
                elif rank == self._rank:
                    received[key] = torch.empty(source.entry.metadata_bytes, dtype=torch.uint8)
                    incoming += [(source.holder, received[key]), (source.holder, files[key].memory)]
        exchange_tensors(outgoing, incoming, self._group)
        return {key: metadata.numpy().tobytes() for key, metadata in received.items()}

    def _read(self, state: State, sources: Mapping[Key, _Source]) -> "_Loaded":
        """Read and verify the files of this rank, before any tensor of the state changes."""
        live = state_parts(state)
        pairs: list[tuple[Tensor, Tensor]] = []
        loaded = _Loaded(pairs, {}, {})
        for key, source in sources.items():
            path = Path(source.entry.path) if source.receiver is None else _received_path(self._folder, key)
            metadata = read_metadata(path)
            if metadata is None or (metadata.part, metadata.owner, metadata.step) != (*key, source.entry.step):
                raise DamagedCheckpointError(f"{path} has changed")
            part = metadata.part
            stored = read_tensors(path, metadata, live[part])
            if {name: metadata.values[name] for name in ("shape", "order")} != {
                name: value for name, value in state.values().items() if name in ("shape", "order")
            }:
                raise DamagedCheckpointError(f"{path} has another model or order of samples")
            for name, tensor in stored.items():
                if name.startswith(GENERATORS):
                    loaded.generators[name.removeprefix(GENERATORS)] = tensor.clone()
                else:
                    pairs.append((live[part][name], tensor))
            loaded.values.update(metadata.values)
        return loaded

    def _available_bytes(self) -> float:
        """Return the memory that the copies on this node may use, with that of the files that exist."""
        existing = sum(file.stat().st_size for file in self._folder.iterdir())
        status = os.statvfs(self._folder)
        available = read_sizes(MEMINFO)["MemAvailable"]
        free = status.f_bavail * status.f_frsize
        return min(MEMORY_SHARE * (available + existing), TMPFS_SHARE * (free + existing))

    def _allocate(self, plan: "CopyPlan") -> "CopyWriter":
        rank = self._rank
        own: dict[Part, list[MemoryFile]] = {}
        peer: dict[Part, list[MemoryFile]] = {}
        for part, size in plan.own_sizes(rank).items():
            own[part] = self._open_slots("own", part, size)
        for part, size in plan.sent_sizes(plan.sender(rank)).items():
            peer[part] = self._open_slots("peer", part, size)
        return CopyWriter(plan, own, peer, self._loaded)

    def _open_slots(self, kind: str, part: Part, size: int) -> list[MemoryFile]:
        return [MemoryFile(_file_path(self._folder, kind, self._local_rank, part, slot), size) for slot in SLOTS]


@dataclass
class _Loaded:
    """What was read for one rank: live tensors with what they get, generators, and values."""

    tensors: list[tuple[Tensor, Tensor]]
    generators: dict[str, Tensor]
    values: dict[str, Any]


def open_memory_copies(environment: Environment, config: TrainerConfig) -> MemoryCopies | None:
    """Return the copies of this rank, with a separate process group; None if they are off. All ranks call it."""
    if environment.memory_dir is None or not config.checkpoint.memory_copies:
        return None
    group = dist.new_group(backend="gloo", timeout=process_group_timeout(config.timeouts.longest_seconds))
    assert isinstance(group, dist.ProcessGroup), "every rank is in the group"
    folder, ranks = environment.memory_dir, environment.local_world_size
    return MemoryCopies(folder, group, config.checkpoint, environment.local_rank, ranks)


def _file_path(folder: Path, kind: str, local_rank: int, part: str, slot: int) -> Path:
    return folder / f"{kind}-{local_rank}-{part}-{slot}"


def _received_path(folder: Path, key: Key) -> Path:
    return folder / f"received-{key[0]}-{key[1]}"
