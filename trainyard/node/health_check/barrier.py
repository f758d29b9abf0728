"""Barrier of a health check on a shared store. If it times out, it names the nodes that did not arrive."""

import time
from collections.abc import Sequence
from datetime import timedelta

from torch._C._distributed_c10d import Store
from torch.distributed import DistError

_MAXIMUM_NAMES = 8  # in one message


class MissingPeersError(RuntimeError):
    """Nodes did not arrive in time. The waiting node reports it, and it is not a fault of the waiting node."""

    def __init__(self, stage: str, missing_peers: Sequence[str]) -> None:
        names = ", ".join(missing_peers[:_MAXIMUM_NAMES])
        if len(missing_peers) > _MAXIMUM_NAMES:
            names += f" and {len(missing_peers) - _MAXIMUM_NAMES} more"
        super().__init__(f"{stage}: {names} did not arrive")
        self.missing_peers = list(missing_peers)


class Barrier:
    """Barrier of all processes of a health check. `node`: instance id of this node. `processes`: processes per node."""

    def __init__(self, store: Store, rank: int, processes: int, node: str) -> None:
        self._store, self._rank, self._processes = store, rank, processes
        store.set(f"name/{rank}", node)

    def wait(self, stage: str, ranks: range, deadline: float) -> None:
        """Wait for all `ranks` until the deadline (Unix time). Raises MissingPeersError for ranks that do not arrive.

        Each rank sets one key, and the last rank sets a common key: without a timeout no rank reads all other keys.
        """
        prefix = f"{stage}/{ranks.start}"
        self._store.set(f"{prefix}/{self._rank}", "here")
        if self._store.add(f"{prefix}/count", 1) == len(ranks):
            self._store.set(f"{prefix}/all", "here")
        try:
            self._store.wait([f"{prefix}/all"], timedelta(seconds=max(deadline - time.time(), 1.0)))
        except DistError:
            missing = [rank for rank in ranks if not self._store.check([f"{prefix}/{rank}"])]
            if missing:
                raise MissingPeersError(stage, self._node_names(missing)) from None

    def _node_names(self, ranks: Sequence[int]) -> list[str]:
        """Instance ids of the nodes of these ranks, as any rank of the node has set it."""
        names: dict[str, None] = {}
        for node in dict.fromkeys(rank // self._processes for rank in ranks):
            node_ranks = range(node * self._processes, (node + 1) * self._processes)
            named = next((rank for rank in node_ranks if self._store.check([f"name/{rank}"])), None)
            if named is None:
                names[f"the node of ranks {node_ranks.start} to {node_ranks.stop - 1}"] = None
            else:
                names[self._store.get(f"name/{named}").decode()] = None
        return list(names)
