"""Explain a lost connection to another rank in one line."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from trainyard.models.failure_messages import PEER_LOST

# Messages of gloo (transport/tcp/pair.cc) and NCCL (ncclRemoteError); torch has no exception class for them. The gloo
# prefix is required because a connection to storage can also be reset.
_CONNECTION_LOST = re.compile(
    r"gloo/transport\S*.*?(Connection closed by peer|Connection reset by peer|Broken pipe)"
    r"|(remote process exited or there was a network error)",
    re.DOTALL,
)


class PeerLostError(Exception):
    """Another rank has terminated; the message is for the operator. The process exits with status 1."""


@contextmanager
def explain_peer_loss(where: str, rank: int, last_step: Callable[[], int]) -> Iterator[None]:
    """Convert the error of a broken connection to another rank into PeerLostError.

    `where`: this rank's host and GPU; `last_step` returns the last completed step.
    """
    try:
        yield
    except (RuntimeError, OSError) as error:  # errors of a checkpoint save or load have other messages
        if not (match := _CONNECTION_LOST.search(str(error))):
            raise
        raise PeerLostError(
            f"rank {rank} ({where}), after step {last_step()}: {PEER_LOST} ({match[1] or match[2]}). The last lines of"
            " that rank's stderr have the cause; if there are none, torchrun's report names the rank and the signal"
            " that terminated it"
        ) from None
