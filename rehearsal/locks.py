"""What keeps rehearsals apart: one of a stack at a time, and a block of loopback addresses for each."""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainyard.base import InputError, Problem

# An address block is taken by whoever listens on this port of its first address: a lock of the kernel's, machine-wide,
# between all users, gone with its holder.
_LOCK_PORT = 7770
_NETWORK = "127.77"


@contextmanager
def stack_lock(folder: Path, stack: str) -> Iterator[str]:
    """Hold `folder`/lock. Its value: the process of the last holder, where that was cut and could not let go of it.

    Raises InputError that names the holder's process when another rehearsal has it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            why = f"another rehearsal of it runs in {folder}: process {file.read().strip() or 'unknown'}"
            raise InputError(
                [Problem(key="--stack", value=stack, why=why, fix="Wait for its end, or end it by its id")]
            ) from None
        file.seek(0)
        cut = file.read().strip()
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        try:
            yield cut
        finally:
            file.truncate(0)


@contextmanager
def address_block() -> Iterator[str]:
    """A free /24 of 127.77.0.0/16 for the nodes of one rehearsal. Raises InputError when all are taken."""
    for block in range(1, 255):
        lock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            lock.bind((f"{_NETWORK}.{block}.1", _LOCK_PORT))
            lock.listen(1)
        except OSError:
            lock.close()
            continue
        with lock:
            yield f"{_NETWORK}.{block}.0/24"
        return
    why = f"no block of addresses in it is free: 254 rehearsals run, or another program has port {_LOCK_PORT}"
    fix = f"End what listens there (ss -ltnp 'sport = :{_LOCK_PORT}' names it)"
    raise InputError([Problem(key="the loopback network", value=f"{_NETWORK}.0.0/16", why=why, fix=fix)])
