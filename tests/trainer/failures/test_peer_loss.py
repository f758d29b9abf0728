"""Message of a rank that has lost the connection to another rank."""

import pytest

from trainer.failures.peer_loss import PeerLostError, explain_peer_loss
from trainyard.models.failure_messages import PEER_LOST
from trainyard.node.controller.failure_analysis import is_caused_by_peer

GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] {} [127.0.0.1]:40126"


@pytest.mark.parametrize(
    "message",
    [
        GLOO.format("Connection closed by peer"),
        GLOO.format("Read error: Connection reset by peer"),
        "[/pytorch/gloo/transport/tcp/unbound_buffer.cc:81]\nWrite error: Broken pipe",
        "NCCL error: ncclRemoteError: A call failed possibly due to a network error or a remote process exited or "
        "there was a network error",
    ],
    ids=["closed", "reset", "pipe", "nccl"],
)
def test_controller_attributes_the_message_to_a_peer(message: str) -> None:
    with pytest.raises(PeerLostError) as caught, explain_peer_loss("a, local rank 0, CPU", 2, lambda: 7):
        raise RuntimeError(message)
    (line,) = str(caught.value).splitlines()
    assert line.startswith("rank 2 (a, local rank 0, CPU), after step 7: ")
    assert PEER_LOST in line
    assert is_caused_by_peer(line)


@pytest.mark.parametrize(
    "error", [RuntimeError("mat1 and mat2 shapes"), ConnectionResetError("[Errno 104] Connection reset by peer")]
)
def test_other_errors_are_not_converted(error: Exception) -> None:
    """Including a lost connection to storage."""
    with pytest.raises(type(error)) as caught, explain_peer_loss("a", 0, lambda: 1):
        raise error
    assert caught.value is error
