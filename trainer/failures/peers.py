"""A rank that went away: what the others see of it, in one line each."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Of gloo (transport/tcp/pair.cc) and NCCL (ncclRemoteError); the library has no exception of its own for it. The
# connection to a storage may be reset, too.
_WORDS = re.compile(
    r"gloo/transport\S*.*?(Connection closed by peer|Connection reset by peer|Broken pipe)"
    r"|(remote process exited or there was a network error)",
    re.DOTALL,
)


class PeerLost(Exception):
    """In words for whoever looks after the job. The process ends with status 1."""


@contextmanager
def told_of_lost_peers(where: str, rank: int, step: Callable[[], int]) -> Iterator[None]:
    """Turn what a broken connection to another rank raises into PeerLost. `where`: this rank's host and GPU; `step`:
    the last finished one."""
    try:
        yield
    except (RuntimeError, OSError) as error:  # that of a save or a load has been put in other words
        if not (words := _WORDS.search(str(error))):
            raise
        raise PeerLost(
            f"rank {rank} ({where}), after step {step()}: another rank has gone away ({words[1] or words[2]}). That "
            "one's own last words say why; where it left none, torchrun's report names it and the signal that ended it"
        ) from None
