"""A rank that went away: what the others see of it, in one line each."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Of gloo (gloo/transport/tcp/pair.cc) and NCCL (ncclRemoteError); the library has no exception of its own for it.
_WORDS = re.compile(
    r"Connection (closed|reset) by peer|Broken pipe|remote process exited or there was a network error", re.IGNORECASE
)


class PeerLost(Exception):
    """In words for whoever looks after the job. The process ends with status 1."""


@contextmanager
def told_of_lost_peers(where: str, rank: int, step: Callable[[], int]) -> Iterator[None]:
    """Turn what a broken connection to another rank raises into PeerLost. `where`: this rank's host and GPU; `step`:
    the last finished one."""
    try:
        yield
    except RuntimeError as error:
        if not (words := _WORDS.search(str(error))):
            raise
        raise PeerLost(
            f"rank {rank} ({where}), after step {step()}: another rank has gone away ({words[0]}). That one's own last "
            "words say why; where it left none, torchrun's report names it and the signal that ended it"
        ) from None
