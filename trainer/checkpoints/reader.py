"""Loads the newest readable checkpoint on any number of ranks. Each entry is read once for all ranks that need it."""

import logging
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from trainer.checkpoints.entries import CheckpointRead
from trainer.checkpoints.failures import DamagedCheckpointError, on_all_ranks, retry
from trainer.checkpoints.files import plan_read, read_metadata
from trainer.checkpoints.retention import folder_name, is_complete, list_steps
from trainer.checkpoints.shared_reads import read_shared
from trainer.checkpoints.state import (
    State,
    named_tensors,
    require_same_optimizer,
    require_same_sizes,
    restore_rng_state,
    rng_state,
)
from trainer.local_tensor import local_tensor
from trainer.storage import Storage
from trainyard.errors import InputError, Problem

T = TypeVar("T")
log = logging.getLogger(__name__)


def load_newest(storage: Storage, state: State, group: dist.ProcessGroup, *, same_run: bool = True) -> str | None:
    """Load the newest complete and undamaged checkpoint into `state`. All ranks of the group call it together.

    Returns its URI, or None if no complete checkpoint exists. Damaged checkpoints are skipped, each with one warning.
    `same_run`: the checkpoints are of this run; a checkpoint of another run may have another order of samples, and then
    the count of samples starts at 0. Raises InputError if all checkpoints are damaged, if the newest one has another
    model, if it has another order of samples and is of this run, or if it is archived; OSError if the storage can't be
    read.
    """
    damaged: list[str] = []
    candidates = _newest_first(storage) if dist.get_rank(group) == 0 else iter(())
    while True:
        uri = retry(lambda: _from_first_rank(lambda: next(candidates, None), group), "listing", storage.uri)
        if uri is None:
            break
        try:
            load(uri, state, group, same_run=same_run)
        except DamagedCheckpointError as error:
            damaged.append(uri)
            if dist.get_rank() == 0:
                log.warning("skipping checkpoint %s, which is damaged: %s", uri, error)
        else:
            return uri
    if damaged:
        reason = f"all its complete checkpoints are damaged ({', '.join(damaged)})"
        fix = "Delete them or set another URI to start from step 0; or resume from another run"
        raise InputError([Problem(storage.name, storage.uri, reason, fix, "checkpoints_damaged")])
    return None


def newest_step(storage: Storage, group: dist.ProcessGroup) -> int | None:
    """Return the step of the newest complete checkpoint, damaged or not; None without one. All ranks call it."""

    def find() -> int | None:
        return next((step for step in reversed(list_steps(storage)) if is_complete(storage, step)), None)

    return retry(lambda: _from_first_rank(find, group), "listing", storage.uri)


def load(uri: str, state: State, group: dist.ProcessGroup, *, same_run: bool = True) -> None:
    """Load one complete checkpoint into `state`, in place.

    Raises the errors of `load_newest`, and DamagedCheckpointError.
    """
    metadata, values = retry(
        lambda: _from_first_rank(lambda: _read_values(uri, state, same_run=same_run), group), "reading", uri
    )
    retry(lambda: _load_tensors(uri, metadata, state, group), "loading", uri)
    state.restore_values(values)


def read_state_dict(uri: str, names: set[str] | None = None) -> dict[str, Any]:
    """Read a checkpoint into CPU memory, in a process without a process group. Keys are full names.

    `names`: the names to read; None: all. Raises OSError, also for a damaged checkpoint.
    """
    try:
        metadata = retry(lambda: read_metadata(uri), "reading", uri, pauses_seconds=())
        content: dict[str, Any] = {
            name: torch.empty(entry.size, dtype=entry.properties.dtype)
            if isinstance(entry, TensorStorageMetadata)
            else None
            for name, entry in metadata.state_dict_metadata.items()
            if names is None or name in names
        }
        retry(lambda: plan_read(content, uri, metadata).read(), "loading", uri, pauses_seconds=())
    except DamagedCheckpointError as error:
        raise OSError(f"{uri} is damaged: {error}") from error
    return content


def _newest_first(storage: Storage) -> Iterator[str]:
    for step in reversed(list_steps(storage)):
        if is_complete(storage, step):
            yield f"{storage.uri}{folder_name(step)}/"


def _from_first_rank(function: Callable[[], T], group: dist.ProcessGroup) -> T:
    """Call `function` on the first rank of the group and return its result, or raise its failure, on all ranks."""
    is_first = dist.get_rank(group) == 0
    result: list[Any] = [on_all_ranks(function, group) if is_first else on_all_ranks(lambda: None, group)]
    dist.broadcast_object_list(result, group_src=0, group=group)
    return cast(T, result[0])


def _read_values(uri: str, state: State, *, same_run: bool) -> tuple[Metadata, dict[str, Any]]:
    """Read the metadata and all values that are no tensors, and check that this run can use the checkpoint."""
    metadata = read_metadata(uri)
    values = state.values()
    names = metadata.state_dict_metadata
    values["progress"] = {key: value for key, value in values["progress"].items() if f"progress.{key}" in names}
    if not {"shape", "progress.step"} <= names.keys():
        raise DamagedCheckpointError("it is not a checkpoint of this trainer")
    for key in {"scaler", "order"} - names.keys():
        del values[key]
    plan_read(values, uri, metadata).read()
    state.require_same_model(values, uri)
    if problems := state.order_problems(values, uri):
        if same_run:
            raise InputError(problems)
        keys = " and ".join(problem.key for problem in problems)
        log.warning("%s was made with another %s: this run counts its samples from 0", uri, keys)
        values["progress"]["consumed"] = 0
    return metadata, values


def _load_tensors(uri: str, metadata: Metadata, state: State, group: dist.ProcessGroup) -> None:
    """Read on one rank of each group of replicas, then broadcast to the other replicas."""
    replicas = state.replicas
    members = dist.get_process_group_ranks(replicas) if replicas else [dist.get_rank()]
    content = state.tensors()
    # A rank that the checkpoint does not have keeps the generator state that it was seeded with.
    current = rng_state()
    content["generators"] = {
        str(rank): {
            key: torch.empty_like(value)
            for key, value in current.items()
            if f"generators.{rank}.{key}" in metadata.state_dict_metadata
        }
        for rank in members
    }

    def plan() -> CheckpointRead:
        require_same_sizes(content["model"], metadata, uri)
        require_same_optimizer(content["optimizer"], metadata, uri)
        return plan_read(content if members[0] == dist.get_rank() else {}, uri, metadata)

    read = on_all_ranks(plan, group)
    on_all_ranks(lambda: read_shared(read, metadata, group), group)
    if replicas:
        ordered = sorted(named_tensors(content), key=lambda item: item[0])  # the same order on all replicas
        broadcast_tensors([local_tensor(tensor) for _, tensor in ordered], members[0], replicas)
    restore_rng_state(content["generators"][str(dist.get_rank())])


def broadcast_tensors(tensors: list[Tensor], source: int, replicas: dist.ProcessGroup) -> None:
    """Broadcast the tensors of the rank `source` to the other ranks of the group, in place."""
    with torch.no_grad():
        works = [dist.broadcast(tensor, source, group=replicas, async_op=True) for tensor in tensors if tensor.numel()]
    for work in works:
        if work is not None:
            work.wait()
