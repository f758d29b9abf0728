"""Loading: the newest checkpoint that can be read, on any number of ranks, what several want read once."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from trainer.checkpoints import keeping
from trainer.checkpoints.entries import Reading
from trainer.checkpoints.failures import Damaged, insist, together
from trainer.checkpoints.files import read_metadata, reading
from trainer.checkpoints.sharing import read_together
from trainer.checkpoints.state import State, generators, local, require_same_sizes, restore_generators, tensors_of
from trainer.storage import Storage
from trainyard.base import InputError, Problem

T = TypeVar("T")


def load_newest(storage: Storage, state: State, group: dist.ProcessGroup, *, own: bool = True) -> str | None:
    """Fill `state` from the newest complete checkpoint that is whole, by all ranks of the group together.

    Returns its URI, None where there is no complete one. Each damaged one is passed over with one line of warning.
    Raises InputError where all are damaged, where it was made with another model or, if it is the run's `own`, another
    order of samples, or has been archived; OSError where the storage can't be read. Of another run whose samples come
    otherwise all is taken but their count, which begins at 0.
    """
    damaged: list[str] = []
    candidates = _newest_first(storage) if dist.get_rank(group) == 0 else iter(())
    while True:
        uri = insist(lambda: _shared(lambda: next(candidates, None), group), "looking for checkpoints", storage.uri)
        if uri is None:
            break
        try:
            load(uri, state, group, own=own)
        except Damaged as error:
            damaged.append(uri)
            if dist.get_rank() == 0:
                print(f"warning: checkpoint {uri} is damaged and passed over: {error}", flush=True)
        else:
            return uri
    if damaged:
        why = f"all its complete checkpoints are damaged ({', '.join(damaged)})"
        fix = "Delete them, or name another place, to begin anew; or resume from another run"
        raise InputError([Problem(key=storage.name, value=storage.uri, why=why, fix=fix)])
    return None


def load(uri: str, state: State, group: dist.ProcessGroup, *, own: bool = True) -> None:
    """Fill `state` in place from one complete checkpoint. Raises as `load_newest`, and Damaged."""
    metadata, words = insist(lambda: _shared(lambda: _beginning(uri, state, own=own), group), "reading", uri)
    insist(lambda: _load_tensors(uri, metadata, state, group), "loading", uri)
    state.restore(words)


def load_whole(uri: str, names: set[str] | None = None) -> dict[str, Any]:
    """Entries of a checkpoint, all or those of these full names, on the CPU of a process without a group.

    Raises OSError, also for a damaged one.
    """
    try:
        metadata = insist(lambda: read_metadata(uri), "reading", uri, pauses=())
        content: dict[str, Any] = {
            name: torch.empty(entry.size, dtype=entry.properties.dtype)
            if isinstance(entry, TensorStorageMetadata)
            else None
            for name, entry in metadata.state_dict_metadata.items()
            if names is None or name in names
        }
        insist(lambda: reading(content, uri, metadata).read(), "loading", uri, pauses=())
    except Damaged as error:
        raise OSError(f"{uri} is damaged: {error}") from error
    return content


def _newest_first(storage: Storage) -> Iterator[str]:
    for step in reversed(keeping.steps(storage)):
        if keeping.is_complete(storage, step):
            yield f"{storage.uri}{keeping.name_of(step)}/"


def _shared(asked: Callable[[], T], group: dist.ProcessGroup) -> T:
    """What the first rank of the group found out, on all ranks; or its failure."""
    first = dist.get_rank(group) == 0
    found: list[Any] = [together(asked, group) if first else together(lambda: None, group)]
    dist.broadcast_object_list(found, group_src=0, group=group)
    return cast(T, found[0])


def _beginning(uri: str, state: State, *, own: bool) -> tuple[Metadata, dict[str, Any]]:
    """Where everything stands, and what is no tensor: enough to know whether the rest is worth reading."""
    metadata = read_metadata(uri)
    words = state.words()
    known = metadata.state_dict_metadata
    words["progress"] = {key: value for key, value in words["progress"].items() if f"progress.{key}" in known}
    if not {"shape", "progress.step"} <= known.keys():
        raise Damaged("it is not a checkpoint of this trainer")
    for key in {"scaler", "order"} - known.keys():
        del words[key]
    reading(words, uri, metadata).read()
    state.require_same(words, uri)
    if disorder := state.disorder(words, uri):
        if own:
            raise InputError(disorder)
        keys = " and ".join(problem.key for problem in disorder)
        print(f"{uri} was made with another {keys}: this run counts its samples from 0", flush=True)
        words["progress"]["consumed"] = 0
    return metadata, words


def _load_tensors(uri: str, metadata: Metadata, state: State, group: dist.ProcessGroup) -> None:
    """One rank of each group of replicas takes part in reading, then the others get it from that one."""
    replicas = state.replicas
    members = dist.get_process_group_ranks(replicas) if replicas else [dist.get_rank()]
    content = state.tensors()
    # With more ranks than the checkpoint had, the new ones keep the generators they were seeded with.
    own = generators()
    content["generators"] = {
        str(rank): {
            key: torch.empty_like(value)
            for key, value in own.items()
            if f"generators.{rank}.{key}" in metadata.state_dict_metadata
        }
        for rank in members
    }

    def begun() -> Reading:
        require_same_sizes(content["model"], metadata, uri)
        return reading(content if members[0] == dist.get_rank() else {}, uri, metadata)

    wanted = together(begun, group)
    together(lambda: read_together(wanted, metadata, group), group)
    if replicas:
        in_order = sorted(tensors_of(content), key=lambda each: each[0])  # the same on all ranks that hold the same
        _spread([local(tensor) for _, tensor in in_order], members[0], replicas)
    restore_generators(content["generators"][str(dist.get_rank())])


def _spread(tensors: list[Tensor], source: int, replicas: dist.ProcessGroup) -> None:
    with torch.no_grad():
        sent = [dist.broadcast(tensor, source, group=replicas, async_op=True) for tensor in tensors if tensor.numel()]
    for work in sent:
        if work is not None:
            work.wait()
