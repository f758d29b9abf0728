"""Counts the collective operations of a program and their bytes, by process group."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from trainer.plan.memory import tensors_of

# Operations of torch.ops.c10d and torch.ops._c10d_functional.
_OPERATIONS = {
    "_allgather_base_": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "all_gather_into_tensor_out": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "allreduce_": "all_reduce",
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "alltoall_base_": "all_to_all",
    "all_to_all_single": "all_to_all",
    "broadcast_": "broadcast",
    "send": "send",
    "recv_": "receive",
}


@dataclass(frozen=True)
class Operation:
    """A kind of collective operation in one process group, which is named by dimensions of the device mesh."""

    name: str
    group: str
    ranks: int


@dataclass(frozen=True)
class Total:
    """Number of operations, and the sum of the sizes of their largest tensors on this rank, bytes."""

    count: int
    bytes: int

    def __add__(self, other: "Total") -> "Total":
        """Return the sum."""
        return Total(self.count + other.count, self.bytes + other.bytes)

    def times(self, factor: int) -> "Total":
        """Return the total of `factor` repetitions."""
        return Total(self.count * factor, self.bytes * factor)


Totals = dict[Operation, Total]


def add(*totals: Totals) -> Totals:
    """Return the sums."""
    result: Totals = {}
    for each in totals:
        for operation, total in each.items():
            result[operation] = result.get(operation, Total(0, 0)) + total
    return result


class CollectiveCounter:
    """Counts operations. `groups`: name of each process group in torch -> its name and its number of ranks."""

    def __init__(self, groups: Mapping[str, tuple[str, int]]) -> None:
        self._groups = groups
        self._totals: Totals = {}

    def observe(self, function: Any, values: Any) -> None:
        """Count an operation if it is a collective. `values`: its arguments and its result."""
        name = function.overloadpacket.__name__
        if function.namespace in ("c10d", "_c10d_functional") and name in _OPERATIONS:
            group = next(name for name in map(self._group_name, values) if name is not None)
            size = max((each.numel() * each.element_size() for each in tensors_of(values)), default=0)
            self.count(_OPERATIONS[name], group, Total(1, size))

    def count(self, operation: str, group: str, total: Total) -> None:
        """Count operations of a process group, by its name in torch."""
        name, ranks = self._groups[group]
        self._totals = add(self._totals, {Operation(operation, name, ranks): total})

    def take(self) -> Totals:
        """Return what was counted since the last call."""
        totals, self._totals = self._totals, {}
        return totals

    def _group_name(self, value: Any) -> str | None:
        if isinstance(value, torch.ScriptObject) and "ProcessGroup" in str(value._type()):
            return dist.ProcessGroup.unbox(value).group_name
        return value if isinstance(value, str) and value in self._groups else None
