"""The owner of a client's socket, from the kernel's table of connections."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from rehearsal.adapter.peers import is_own_peer


@pytest.fixture
def servers() -> Iterator[list[socket.socket]]:
    """Two listening sockets."""
    with ExitStack() as stack:
        yield [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]


def connect(server: socket.socket, port: int = 0) -> socket.socket:
    """Return a client that is connected from a free port, or from a port that it shares."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    client.bind(("127.0.0.1", port))
    client.connect(server.getsockname())
    return client


def is_own(client: socket.socket, server: socket.socket) -> bool:
    return is_own_peer(f"ipv4:127.0.0.1:{client.getsockname()[1]}", server.getsockname()[1])


def test_own_client_is_recognized(servers: list[socket.socket]) -> None:
    with connect(servers[0]) as client:
        assert is_own(client, servers[0])


def test_client_with_connections_to_two_servers_is_recognized(servers: list[socket.socket]) -> None:
    with connect(servers[0]) as first, connect(servers[1], first.getsockname()[1]) as second:
        assert first.getsockname() == second.getsockname()
        assert is_own(first, servers[0])
        assert is_own(second, servers[1])


def test_client_that_closed_its_socket_is_not_recognized(servers: list[socket.socket]) -> None:
    client = connect(servers[0])
    port = client.getsockname()[1]
    client.close()
    assert not is_own_peer(f"ipv4:127.0.0.1:{port}", servers[0].getsockname()[1])


@pytest.mark.parametrize("peer", ["ipv4:127.0.0.1:1", "ipv6:[::1]:1", "unix:/x", ""])
def test_unknown_peer_is_not_recognized(servers: list[socket.socket], peer: str) -> None:
    assert not is_own_peer(peer, servers[0].getsockname()[1])
