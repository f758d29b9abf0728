"""Where processes say that they have come: who waits for somebody in vain can name him."""

import time
from collections.abc import Sequence
from datetime import timedelta

from torch._C._distributed_c10d import Store
from torch.distributed import DistError

_LONGEST = 8  # names in one message


class PeersAbsent(RuntimeError):
    """Nodes did not come in time. It is told on the waiting node and is not that node's fault."""

    def __init__(self, stage: str, absent: Sequence[str]) -> None:
        named = ", ".join(absent[:_LONGEST]) + (f" and {len(absent) - _LONGEST} more" if len(absent) > _LONGEST else "")
        super().__init__(f"{stage}: {named} did not come")
        self.absent = list(absent)


class Meeting:
    """All processes of a check on one store. `node` is this node's name; `each` the number of processes on a node."""

    def __init__(self, store: Store, rank: int, each: int, node: str) -> None:
        self._store, self._rank, self._each = store, rank, each
        store.set(f"name/{rank}", node)

    def come(self, stage: str, ranks: range, until: float) -> None:
        """Come, and wait for the others of `ranks` until then, Unix time. Raises PeersAbsent with who has not come.

        One key each and one for all: nobody asks for the keys of a thousand others as long as all goes well.
        """
        place = f"{stage}/{ranks.start}"
        self._store.set(f"{place}/{self._rank}", "here")
        if self._store.add(f"{place}/count", 1) == len(ranks):
            self._store.set(f"{place}/all", "here")
        try:
            self._store.wait([f"{place}/all"], timedelta(seconds=max(until - time.time(), 1.0)))
        except DistError:
            missing = [rank for rank in ranks if not self._store.check([f"{place}/{rank}"])]
            if missing:
                raise PeersAbsent(stage, self._names(missing)) from None

    def _names(self, ranks: Sequence[int]) -> list[str]:
        """Nodes of these ranks: as they named themselves, or as a neighbour did."""
        found: dict[str, None] = {}
        for node in dict.fromkeys(rank // self._each for rank in ranks):
            own = range(node * self._each, (node + 1) * self._each)
            named = next((rank for rank in own if self._store.check([f"name/{rank}"])), None)
            name = f"the node of ranks {own.start} to {own.stop - 1}" if named is None else ""
            found[name or self._store.get(f"name/{named}").decode()] = None
        return list(found)
