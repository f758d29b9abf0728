"""What a rank says of another one that went away."""

import pytest

from trainer.failures.peers import PeerLost, told_of_lost_peers
from trainyard.node.controller.failure_analysis import is_echo

GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] {} [127.0.0.1]:40126"


@pytest.mark.parametrize(
    "words",
    [
        GLOO.format("Connection closed by peer"),
        GLOO.format("Read error: Connection reset by peer"),
        "[/pytorch/gloo/transport/tcp/unbound_buffer.cc:81]\nWrite error: Broken pipe",
        "NCCL error: ncclRemoteError: A call failed possibly due to a network error or a remote process exited or "
        "there was a network error",
    ],
    ids=["closed", "reset", "pipe", "nccl"],
)
def test_it_is_one_line_that_the_controller_knows_for_an_echo(words: str) -> None:
    with pytest.raises(PeerLost) as told, told_of_lost_peers("a, local rank 0, CPU", 2, lambda: 7):
        raise RuntimeError(words)
    (line,) = str(told.value).splitlines()
    assert line.startswith("rank 2 (a, local rank 0, CPU), after step 7: ")
    assert is_echo(line)


@pytest.mark.parametrize(
    "error", [RuntimeError("mat1 and mat2 shapes"), ConnectionResetError("[Errno 104] Connection reset by peer")]
)
def test_other_errors_pass_as_they_are(error: Exception) -> None:
    """Also a storage's connection."""
    with pytest.raises(type(error)) as passed, told_of_lost_peers("a", 0, lambda: 1):
        raise error
    assert passed.value is error
