"""Aborts the collective operations of this process, so that the thread that waits in one continues with an exception.

A rank may wait for a rank that waits for the lost one: only the neighbors of the lost rank see a closed connection.
`ProcessGroupGloo.abort` of torch 2.15 does not end an operation that waits (measured: it returns at once, and the
operation fails only when its peer closes the connection). So the connections of the groups are closed here, which also
informs the peers.
"""

import os
import socket
import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Connection:
    """A connected socket of this process. The inode identifies it: a closed descriptor is used again."""

    descriptor: int
    inode: int


def open_connections() -> set[Connection]:
    """Return the connected sockets of this process."""
    connections = set()
    for entry in os.listdir("/proc/self/fd"):  # noqa: PTH208 (a scan is closed late)
        with suppress(OSError):  # closed meanwhile, or not connected
            status = Path(f"/proc/self/fd/{entry}").stat()
            if stat.S_ISSOCK(status.st_mode):
                with socket.socket(fileno=os.dup(int(entry))) as duplicate:
                    duplicate.getpeername()
                    connections.add(Connection(int(entry), status.st_ino))
    return connections


def shut_down(connections: Iterable[Connection]) -> None:
    """Close the connections in both directions; descriptors remain open until their owners close them."""
    for connection in connections:
        with suppress(OSError):  # closed meanwhile
            duplicate = os.dup(connection.descriptor)
            if os.fstat(duplicate).st_ino != connection.inode:
                os.close(duplicate)
                continue
            with socket.socket(fileno=duplicate) as endpoint:
                endpoint.shutdown(socket.SHUT_RDWR)


def abort_nccl() -> None:
    """Abort the NCCL communicators of all groups, whose kernels wait on the GPU.

    `_abort_process_group` aborts all groups in one call, since separate aborts can deadlock each other
    (https://github.com/pytorch/pytorch/issues/119797). Not rehearsed: it needs GPUs.
    """
    if torch.cuda.is_available() and dist.is_initialized():
        dist.distributed_c10d._abort_process_group()
