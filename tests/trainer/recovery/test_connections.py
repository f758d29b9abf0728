"""Aborting collective operations by their connections."""

import socket

from trainer.recovery.connections import Connection, open_connections, shut_down


def test_only_connected_sockets_are_connections() -> None:
    before = open_connections()
    first, second = socket.socketpair()
    with first, second, socket.create_server(("127.0.0.1", 0)):
        opened = {connection.descriptor for connection in open_connections() - before}
        assert opened == {first.fileno(), second.fileno()}


def test_shut_down_ends_an_operation_that_waits() -> None:
    before = open_connections()
    first, second = socket.socketpair()
    with first, second:
        shut_down(open_connections() - before)
        assert first.recv(1) == second.recv(1) == b""


def test_a_descriptor_that_is_used_again_remains_open() -> None:
    first, second = socket.socketpair()
    with first, second:
        shut_down([Connection(first.fileno(), inode=0), Connection(2**15, inode=0)])
        second.sendall(b"x")
        assert first.recv(1) == b"x"
