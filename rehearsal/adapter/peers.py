"""Refusal of gRPC calls by other users of this machine: Pulumi connects to a provider without a secret.

A provider runs commands. The engine attaches it by its port alone (PULUMI_DEBUG_PROVIDERS), so the kernel's table of
connections decides: it has the user of each socket. Source: https://docs.kernel.org/networking/proc_net_tcp.html.
"""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_MAPPED = "0000000000000000FFFF0000"  # an IPv4 address in the table of IPv6 sockets (RFC 4291, section 2.5.5.2)
_READS = 3  # a table that changes while it is read in parts may omit a connection
_LOCAL, _REMOTE, _USER, _INODE = 1, 2, 7, 9  # columns


def is_own_peer(peer: str, server_port: int) -> bool:
    """Return whether the current user has the client's socket of a connection to a port of this machine.

    `peer`: the client's address as gRPC reports it, `ipv4:127.0.0.1:PORT`. The client may use this port for connections
    to other servers, too.

    The kernel reports user 0 and inode 0 for a socket that its process has closed: such a socket counts as that of
    another user.
    """
    kind, _, address = peer.partition(":")
    host, _, port = address.rpartition(":")
    if kind != "ipv4":
        return False
    number = int.from_bytes(socket.inet_aton(host), "little")
    client, server = f"{number:08X}:{int(port):04X}", f":{server_port:04X}"
    return any(_socket_users(client, server) == {str(os.getuid())} for _ in range(_READS))


def _socket_users(client: str, server: str) -> set[str]:
    rows = [line.split() for table in _TABLES if table.exists() for line in table.read_text().splitlines()[1:]]
    connections = [row for row in rows if row[_LOCAL] in {client, _MAPPED + client} and row[_REMOTE].endswith(server)]
    return {row[_USER] for row in connections if row[_INODE] != "0"}


class OwnUserOnly(grpc.ServerInterceptor):  # type: ignore[misc]
    """Refuses calls of other users with PERMISSION_DENIED. It supports unary methods: a provider has no others.

    `port`: that of the server, once it has one.
    """

    def __init__(self) -> None:
        self.port = 0

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        """Return the handler of a call, which checks the peer first."""
        handler = continuation(details)
        if handler is None or handler.unary_unary is None:
            return None  # gRPC responds with UNIMPLEMENTED

        def call(request: Any, context: Any) -> Any:
            if not is_own_peer(context.peer(), self.port):
                context.abort(grpc.StatusCode.PERMISSION_DENIED, "this provider serves only the user who runs it")
            return handler.unary_unary(request, context)

        return grpc.unary_unary_rpc_method_handler(call, handler.request_deserializer, handler.response_serializer)
